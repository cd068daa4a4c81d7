// SPDX-License-Identifier: Apache-2.0
// A small block of host data that goes to one place on the device again and again, without waiting for the device.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>

#include "kernels/base/buffer.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Where a field of such a block begins: offsets are multiples of this.
inline constexpr size_t kFieldAlignment = 256;
constexpr size_t AlignField(size_t bytes) { return (bytes + kFieldAlignment - 1) / kFieldAlignment * kFieldAlignment; }

// The field at `offset` of a block, on either side.
template <typename T>
T* FieldAt(const Buffer& block, size_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(block.data()) + offset);
}

class PinnedUpload {
 public:
  // Two pinned blocks of so many zero bytes: the next is written while the last one is copied.
  PinnedUpload(DeviceContext& ctx, size_t bytes);
  ~PinnedUpload();
  PinnedUpload(const PinnedUpload&) = delete;
  PinnedUpload& operator=(const PinnedUpload&) = delete;

  // The block to write now. Waits for the copy from it, two uploads ago.
  const Buffer& Next();
  // Copies the first `bytes` of the block that Next gave last.
  // Async: on the context's stream.
  void CopyTo(void* device, size_t bytes);

 private:
  DeviceContext& ctx_;
  std::array<Buffer, 2> blocks_;
  std::array<cudaEvent_t, 2> copied_{};
  size_t slot_ = 0;
};

}  // namespace stoch::cuda
