// SPDX-License-Identifier: Apache-2.0
// Places in blocks of memory that are taken and given back like a stack: bookkeeping without the memory.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace stoch {

// Each taking goes to the first block with room after what is in use there, so what earlier blocks have free is used
// before there is another one. The same sequence of takings from the same state gives the same places.
class BlockStack {
 public:
  static constexpr size_t kAlignment = 256;  // of every place, if the blocks are aligned so

  struct Place {
    size_t block = 0;
    size_t offset = 0;
  };

  // A block of that many bytes, after the others. Returns its number.
  size_t AddBlock(size_t bytes);
  // Room for that many bytes, or nothing if no block has as many.
  std::optional<Place> Take(size_t bytes);

  size_t blocks() const { return blocks_.size(); }
  size_t block_bytes(size_t block) const { return blocks_[block].bytes; }
  size_t bytes() const;         // of all blocks
  size_t largest_free() const;  // what a taking may ask for at most

  // Gives back everything that was taken since depth() was `depth`.
  size_t depth() const { return taken_.size(); }
  void GiveBack(size_t depth);

 private:
  struct Block {
    size_t bytes = 0;
    size_t used = 0;  // from the start
  };
  struct Taken {
    size_t block = 0;
    size_t used = 0;  // of it before
  };
  std::vector<Block> blocks_;
  std::vector<Taken> taken_;
};

}  // namespace stoch
