// Scratch memory of one device: grows during the first passes, then serves every step without an allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/buffer.h"

namespace stoch::cuda {

// Blocks are never freed or moved while the workspace lives, so pointers recorded in a CUDA graph stay valid: the same
// sequence of Take calls gives the same addresses once the blocks exist.
class Workspace {
 public:
  static constexpr size_t kAlignment = 256;

  explicit Workspace(Device device) : device_(device) {}
  int64_t bytes() const;

  // What: the size of a block that is to hold so many bytes.
  static size_t BlockBytes(size_t bytes);
  // What: has a block of at least that many bytes, the first one where there is none yet.
  void Reserve(size_t bytes);

 private:
  friend class Scratch;
  void* Take(size_t bytes);

  Device device_;
  std::vector<Buffer> blocks_;
  size_t block_ = 0;   // the block that serves the next Take
  size_t offset_ = 0;  // first free byte of that block
};

// What:     the scratch of one op; everything taken is free again when the scope ends. Scopes nest like a stack.
// Async:    the memory may be handed to the next op at once: ops of a device run in stream order.
class Scratch {
 public:
  explicit Scratch(Workspace& workspace)
      : workspace_(workspace), block_(workspace.block_), offset_(workspace.offset_) {}
  ~Scratch() {
    workspace_.block_ = block_;
    workspace_.offset_ = offset_;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // What: `count` elements, aligned to 256 bytes, content undefined.
  template <typename T>
  T* Take(int64_t count) {
    return static_cast<T*>(workspace_.Take(static_cast<size_t>(count) * sizeof(T)));
  }

 private:
  Workspace& workspace_;
  size_t block_;
  size_t offset_;
};

}  // namespace stoch::cuda
