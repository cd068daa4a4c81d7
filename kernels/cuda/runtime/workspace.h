// SPDX-License-Identifier: Apache-2.0
// Scratch memory of one device: reserved when a model is loaded, then shared by all ops, passes and layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/plan/block_stack.h"

namespace stoch::cuda {

// A list of blocks of device memory that are never freed or moved while the workspace lives. Once the blocks exist,
// equal sequences of Take calls return equal addresses, so pointers in recorded CUDA graphs stay valid. Ops that
// announced their scratch (Reserve) need no further block; other ops add a block at their first use.
class Workspace {
 public:
  static constexpr size_t kAlignment = BlockStack::kAlignment;

  explicit Workspace(Device device) : device_(device) {}
  int64_t bytes() const { return static_cast<int64_t>(places_.bytes()); }

  // Bytes of the block that is allocated for a request of `bytes`: at least 32 MiB.
  static size_t BlockBytes(size_t bytes);
  // Makes sure that one block has `bytes` free; allocates a block if none has.
  // Errors: OutOfMemory.
  void Reserve(size_t bytes);

 private:
  friend class Scratch;
  void* Take(size_t bytes);
  void AddBlock(size_t bytes);

  Device device_;
  BlockStack places_;
  std::vector<Buffer> blocks_;
};

// The scratch of one op. Everything taken is free again when the object goes out of scope; scopes nest like a stack.
// Async: the next op may take the memory at once, because ops of a device run in stream order.
class Scratch {
 public:
  explicit Scratch(Workspace& workspace) : workspace_(workspace), depth_(workspace.places_.depth()) {}
  ~Scratch() { workspace_.places_.GiveBack(depth_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // `count` elements of device memory, 256-byte aligned, content undefined. Errors: OutOfMemory.
  template <typename T>
  T* Take(int64_t count) {
    return static_cast<T*>(workspace_.Take(static_cast<size_t>(count) * sizeof(T)));
  }

 private:
  Workspace& workspace_;
  size_t depth_;
};

}  // namespace stoch::cuda
