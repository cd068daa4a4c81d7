#include "kernels/cuda/runtime/workspace.h"

#include <algorithm>

#include "kernels/cuda/base/memory.h"

namespace stoch::cuda {
namespace {

constexpr size_t kMinBlockBytes = size_t{32} << 20;

}  // namespace

size_t Workspace::BlockBytes(size_t bytes) { return std::max(bytes, kMinBlockBytes); }

int64_t Workspace::bytes() const {
  size_t total = 0;
  for (const Buffer& block : blocks_) total += block.bytes();
  return static_cast<int64_t>(total);
}

void Workspace::Reserve(size_t bytes) {
  const bool there =
      std::any_of(blocks_.begin(), blocks_.end(), [bytes](const Buffer& block) { return block.bytes() >= bytes; });
  if (bytes > 0 && !there) blocks_.push_back(AllocateDevice(device_, BlockBytes(bytes)));
}

void* Workspace::Take(size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (block_ < blocks_.size() && offset_ + bytes > blocks_[block_].bytes()) {
    ++block_;
    offset_ = 0;
  }
  if (block_ == blocks_.size()) blocks_.push_back(AllocateDevice(device_, BlockBytes(bytes)));
  void* result = static_cast<char*>(blocks_[block_].data()) + offset_;
  offset_ += bytes;
  return result;
}

}  // namespace stoch::cuda
