// SPDX-License-Identifier: Apache-2.0
// Owning device and pinned host memory.
#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

#include "kernels/base/buffer.h"

namespace stoch::cuda {

// Device memory, content undefined; 256-byte aligned.
// Errors: OutOfMemory where the device has not enough free memory (wanted, free); CudaError otherwise.
Buffer AllocateDevice(const Device& device, size_t bytes);

// Pinned host memory, for copies that overlap; content undefined. It has one address on the host and on every GPU
// (unified addressing), so it may also pass as memory of a `device`.
// Errors: OutOfMemory where the host has not enough; CudaError otherwise.
Buffer AllocatePinned(size_t bytes, const Device& device = {});

// Copies from memory of the host to `device`; what is launched afterwards, on whatever stream, finds it there. A bare
// cudaMemcpy from pageable memory may return while the last of it is on its way, and our streams do not wait for it.
// Errors: CudaError.
void Upload(const Device& device, void* to, const void* from, size_t bytes);

// Device memory with a copy of `values`, by Upload; empty where they are. Errors: as AllocateDevice.
template <typename T>
Buffer DeviceCopy(const Device& device, const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (values.empty()) return {};
  Buffer buffer = AllocateDevice(device, values.size() * sizeof(T));
  Upload(device, buffer.data(), values.data(), buffer.bytes());
  return buffer;
}

}  // namespace stoch::cuda
