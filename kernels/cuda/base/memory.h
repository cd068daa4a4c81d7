// SPDX-License-Identifier: Apache-2.0
// Buffers that own device memory or pinned host memory.
#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

#include "kernels/base/buffer.h"

namespace stoch::cuda {

// Allocates `bytes` of device memory, 256-byte aligned, content undefined.
// Errors: OutOfMemory, naming the bytes needed and free, if the device has not enough free memory; CudaError otherwise.
Buffer AllocateDevice(const Device& device, size_t bytes);

// Allocates pinned host memory, which asynchronous copies need; content undefined. The memory has one address on the
// host and on every GPU (unified addressing), so the Buffer may name a GPU as its `device`.
// Errors: OutOfMemory if the host has not enough memory; CudaError otherwise.
Buffer AllocatePinned(size_t bytes, const Device& device = {});

// Copies `bytes` from host memory `from` to device memory `to`. A kernel launched after this call, on any stream, sees
// the copy. (cudaMemcpy alone may return before the last part of pageable memory has arrived, and our non-blocking
// streams would not wait for that part.)
// Errors: CudaError.
void Upload(const Device& device, void* to, const void* from, size_t bytes);

// Allocates device memory and copies `values` to it with Upload; an empty Buffer if `values` is empty. Errors: as
// AllocateDevice and Upload.
template <typename T>
Buffer DeviceCopy(const Device& device, const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (values.empty()) return {};
  Buffer buffer = AllocateDevice(device, values.size() * sizeof(T));
  Upload(device, buffer.data(), values.data(), buffer.bytes());
  return buffer;
}

}  // namespace stoch::cuda
