// SPDX-License-Identifier: Apache-2.0
// Uploads a small block of host data to device memory again and again, without waiting for the device.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>

#include "kernels/base/buffer.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Fields of an upload block begin at multiples of this many bytes.
inline constexpr size_t kFieldAlignment = 256;
constexpr size_t AlignField(size_t bytes) { return (bytes + kFieldAlignment - 1) / kFieldAlignment * kFieldAlignment; }

// The field at byte `offset` of a block, in host or device memory.
template <typename T>
T* FieldAt(const Buffer& block, size_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(block.data()) + offset);
}

// A double buffer of pinned memory for uploads.
class PinnedUpload {
 public:
  // Allocates two pinned blocks of `bytes` bytes, zeroed. While one is being copied, the caller fills the other.
  PinnedUpload(DeviceContext& ctx, size_t bytes);
  ~PinnedUpload();
  PinnedUpload(const PinnedUpload&) = delete;
  PinnedUpload& operator=(const PinnedUpload&) = delete;

  // The block to fill next. Waits until the copy of its previous content, two uploads ago, is complete.
  const Buffer& Next();
  // Copies the first `bytes` bytes of the block that Next returned last to `device`. Async: on the context's stream.
  void CopyTo(void* device, size_t bytes);

 private:
  DeviceContext& ctx_;
  std::array<Buffer, 2> blocks_;
  // Recorded at the end of each block's copy.
  std::array<cudaEvent_t, 2> copied_{};
  // Index of the block that Next returned last.
  size_t slot_ = 0;
};

}  // namespace stoch::cuda
