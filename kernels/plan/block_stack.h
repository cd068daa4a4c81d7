// SPDX-License-Identifier: Apache-2.0
// Places in blocks of memory that are taken and given back like a stack: bookkeeping without the memory.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace stoch {

// Take uses the first block that has enough room after the places in use, so a later block is used only if no earlier
// one has room. Equal sequences of Take calls from equal states return equal places.
class BlockStack {
 public:
  static constexpr size_t kAlignment = 256;  // alignment of every place, if the blocks have it too

  struct Place {
    size_t block = 0;
    size_t offset = 0;
  };

  // Adds a block of `bytes` bytes after the others and returns its index.
  size_t AddBlock(size_t bytes);
  // A place of `bytes` bytes, rounded up to kAlignment; nullopt if no block has room for it.
  std::optional<Place> Take(size_t bytes);

  size_t blocks() const { return blocks_.size(); }
  size_t block_bytes(size_t block) const { return blocks_[block].bytes; }
  size_t bytes() const;         // bytes of all blocks
  size_t largest_free() const;  // most bytes that Take can return now

  // Gives back everything that was taken since depth() was `depth`.
  size_t depth() const { return taken_.size(); }
  void GiveBack(size_t depth);

 private:
  struct Block {
    size_t bytes = 0;
    size_t used = 0;  // bytes in use, from the start of the block
  };
  struct Taken {
    size_t block = 0;
    size_t used = 0;  // Block::used before the place was taken
  };
  std::vector<Block> blocks_;
  std::vector<Taken> taken_;
};

}  // namespace stoch
