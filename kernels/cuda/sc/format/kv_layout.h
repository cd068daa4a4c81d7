// SPDX-License-Identifier: Apache-2.0
// Layout of the quantized keys and values of one layer's KV cache in device memory; attention/kv_cache.h owns the
// arrays.
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace stoch::cuda {

// Maps a page, KV head, position and dimension to element offsets in the arrays of a layer. `slot` is a position's
// index within its page.
//
// Codes are packed in 32-bit words: a word of keys holds four neighbouring dimensions of one position, a word of values
// holds one dimension of four neighbouring positions. The words of a page and KV head are, without tiles,
//   keys    [dim / 4][slot]
//   values  [slot / 4][dim]
// and if IsTiled(), with a tile of contiguous words for every 16 positions,
//   keys    [slot / 16][dim / 4][slot % 16]
//   values  [slot / 16][dim / 16][slot % 16 / 4][dim % 16]
// Four words of neighbouring positions (keys) or dimensions (values) are 16 contiguous bytes in every layout.
//
// Reason for tiles: the load path, which is also that of shared memory, serves 16-byte loads of eight lanes at a time
// and takes one clock for each 128-byte line that the eight lanes touch. In tiles they touch two lines, whether they
// load 32 positions, 32 dimensions, or some of each as the operand of a tensor core.
struct KvLayout {
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;     // elements of a key or value of one head, a multiple of 4
  int32_t page_tokens = 0;  // positions of a page, a power of two, at least 4
  int32_t page_shift = 0;   // log2(page_tokens)

  STOCH_HD int64_t PageHead(int32_t page, int head) const { return static_cast<int64_t>(page) * num_kv_heads + head; }
  STOCH_HD int64_t Value(int32_t page, int head, int slot) const {
    return ((PageHead(page, head) << page_shift) + slot) * head_dim;
  }
  STOCH_HD int64_t Scale(int32_t page, int head, int slot) const { return (PageHead(page, head) << page_shift) + slot; }
  // Offset of the word of keys that holds dimensions 4 * word to 4 * word + 3 of position `slot`.
  STOCH_HD int64_t KWord(int32_t page, int head, int word, int slot) const {
    return (PageHead(page, head) * (head_dim / 4) << page_shift) + KeyWord(word) + KeySlot(slot);
  }
  // Offset of the word of values that holds dimension `dim` of positions 4 * group to 4 * group + 3 of the page.
  STOCH_HD int64_t VWord(int32_t page, int head, int group, int dim) const {
    return (PageHead(page, head) << (page_shift - 2)) * head_dim + ValueGroup(group) + ValueDim(dim);
  }

  static constexpr int kTile = 16;       // positions of a tile
  static constexpr int kTileKey = 16;    // words from four dimensions of a tile's keys to the next four
  static constexpr int kTileGroup = 16;  // words from four positions of a tile's values to the next four
  static constexpr int kTileDims = 64;   // words from 16 dimensions of a tile's values to the next 16
  STOCH_HD bool IsTiled() const { return page_tokens >= kTile && head_dim % 16 == 0; }
  // Offsets in words within a page and KV head, one coordinate each: a word of keys is at KeyWord + KeySlot, a word of
  // values at ValueGroup + ValueDim.
  STOCH_HD int KeyWord(int word) const { return IsTiled() ? word * kTileKey : word << page_shift; }
  STOCH_HD int KeySlot(int slot) const { return IsTiled() ? (slot >> 4) * (4 * head_dim) + (slot & 15) : slot; }
  STOCH_HD int ValueGroup(int group) const {
    return IsTiled() ? (group >> 2) * (4 * head_dim) + (group & 3) * kTileGroup : group * head_dim;
  }
  STOCH_HD int ValueDim(int dim) const { return IsTiled() ? (dim >> 4) * kTileDims + (dim & 15) : dim; }
};

}  // namespace stoch::cuda
