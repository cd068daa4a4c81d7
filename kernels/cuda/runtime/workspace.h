// SPDX-License-Identifier: Apache-2.0
// Scratch memory of one device: reserved when a model is loaded, then shared by every op, pass and layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/plan/block_stack.h"

namespace stoch::cuda {

// Blocks are never freed or moved while the workspace lives, so pointers recorded in a CUDA graph stay valid: the same
// sequence of Take calls gives the same addresses once the blocks exist. What was reserved is enough for the ops that
// said how much they take; others add blocks at their first use.
class Workspace {
 public:
  static constexpr size_t kAlignment = BlockStack::kAlignment;

  explicit Workspace(Device device) : device_(device) {}
  int64_t bytes() const { return static_cast<int64_t>(places_.bytes()); }

  // The size of a block that is to hold so many bytes.
  static size_t BlockBytes(size_t bytes);
  // Has a block with that many bytes free, a new one where there is none.
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

// The scratch of one op; everything taken is free again when the scope ends. Scopes nest like a stack.
// Async:    the memory may be handed to the next op at once: ops of a device run in stream order.
class Scratch {
 public:
  explicit Scratch(Workspace& workspace) : workspace_(workspace), depth_(workspace.places_.depth()) {}
  ~Scratch() { workspace_.places_.GiveBack(depth_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // `count` elements, aligned to 256 bytes, content undefined. Errors: OutOfMemory.
  template <typename T>
  T* Take(int64_t count) {
    return static_cast<T*>(workspace_.Take(static_cast<size_t>(count) * sizeof(T)));
  }

 private:
  Workspace& workspace_;
  size_t depth_;
};

}  // namespace stoch::cuda
