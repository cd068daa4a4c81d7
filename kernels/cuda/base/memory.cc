// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/base/memory.h"

#include <string>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"

namespace stoch::cuda {

Buffer AllocateDevice(const Device& device, size_t bytes) {
  DeviceGuard guard(device);
  void* data = nullptr;
  const cudaError_t code = cudaMalloc(&data, bytes == 0 ? 1 : bytes);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    STOCH_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
    throw OutOfMemory(DeviceName(device) + " has " + std::to_string(free_bytes >> 20) + " MiB free, but " +
                      std::to_string(bytes >> 20) + " MiB are needed in one piece");
  }
  STOCH_CUDA(code);
  return Buffer(data, bytes, device, [device](void* p, size_t) {
    // A destructor must not throw: after a device failure there is nothing left to free.
    try {
      DeviceGuard free_guard(device);
      (void)cudaFree(p);
    } catch (const DeviceError&) {
    }
  });
}

Buffer AllocatePinned(size_t bytes, const Device& device) {
  void* data = nullptr;
  const cudaError_t code = cudaMallocHost(&data, bytes == 0 ? 1 : bytes);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw OutOfMemory("the host cannot page-lock " + std::to_string(bytes >> 20) + " MiB of its memory in one piece");
  }
  STOCH_CUDA(code);
  return Buffer(data, bytes, device, [](void* p, size_t) { (void)cudaFreeHost(p); });
}

void Upload(const Device& device, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  DeviceGuard guard(device);
  STOCH_CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  STOCH_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
}

}  // namespace stoch::cuda
