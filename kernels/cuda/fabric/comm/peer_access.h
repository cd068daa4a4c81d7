// SPDX-License-Identifier: Apache-2.0
// Peer access between GPUs: enabling it, and copies between devices.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace stoch::cuda {

// Enables peer access from every device to every other device that it can reach. Errors: CudaError.
void EnablePeerAccess(std::span<const Device> devices);

// Enqueues a copy between the memories of two devices, or within one. Requires: `stream` is one of from_device, which
// is the current device.
void CopyBetween(void* to, const Device& to_device, const void* from, const Device& from_device, size_t bytes,
                 cudaStream_t stream);

// Whether every device reaches the memory of every other one, and the environment does not have NCCL_P2P_DISABLE=1,
// which is NCCL's switch for machines with broken peer access.
bool AreDirect(std::span<const Device> devices);

std::vector<DeviceLink> ReadLinks(std::span<const Device> devices);

}  // namespace stoch::cuda
