// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/block_stack.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace stoch {

size_t BlockStack::AddBlock(size_t bytes) {
  blocks_.push_back({bytes, 0});
  return blocks_.size() - 1;
}

std::optional<BlockStack::Place> BlockStack::Take(size_t bytes) {
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Block& block = blocks_[i];
    if (rounded > block.bytes - block.used) continue;
    taken_.push_back({i, block.used});
    const Place place{i, block.used};
    block.used += rounded;
    return place;
  }
  return std::nullopt;
}

size_t BlockStack::bytes() const {
  size_t total = 0;
  for (const Block& block : blocks_) total += block.bytes;
  return total;
}

size_t BlockStack::largest_free() const {
  size_t most = 0;
  for (const Block& block : blocks_) most = std::max(most, (block.bytes - block.used) / kAlignment * kAlignment);
  return most;
}

void BlockStack::GiveBack(size_t depth) {
  STOCH_CHECK(depth <= taken_.size());
  for (; taken_.size() > depth; taken_.pop_back()) blocks_[taken_.back().block].used = taken_.back().used;
}

}  // namespace stoch
