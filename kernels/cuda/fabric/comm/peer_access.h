// SPDX-License-Identifier: Apache-2.0
// Which GPUs reach each other's memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace stoch::cuda {

// Lets every device use the memory of every other that it can reach. Errors: CudaError.
void EnablePeerAccess(std::span<const Device> devices);

// Enqueues a copy from one device's memory to another's, or its own. Requires: a stream of `from_device`, current.
void CopyBetween(void* to, const Device& to_device, const void* from, const Device& from_device, size_t bytes,
                 cudaStream_t stream);

// Whether data goes straight from each to each: all reach all others, and NCCL's switch for machines whose peer access is
// broken, NCCL_P2P_DISABLE=1, is not set.
bool AreDirect(std::span<const Device> devices);

std::vector<DeviceLink> ReadLinks(std::span<const Device> devices);

}  // namespace stoch::cuda
