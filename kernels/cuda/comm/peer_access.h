// SPDX-License-Identifier: Apache-2.0
// Which GPUs reach each other's memory.
#pragma once

#include <span>
#include <vector>

#include "kernels/backend.h"

namespace stoch::cuda {

// Lets every device use the memory of every other that it can reach. Errors: CudaError.
void EnablePeerAccess(std::span<const Device> devices);

// Whether all of them reach all others.
bool AllReach(std::span<const Device> devices);

std::vector<DeviceLink> ReadLinks(std::span<const Device> devices);

}  // namespace stoch::cuda
