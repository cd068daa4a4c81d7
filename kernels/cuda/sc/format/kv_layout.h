// SPDX-License-Identifier: Apache-2.0
// Where a position's numbers are in the KV cache of a layer; what the arrays are: attention/kv_cache.h.
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace stoch::cuda {

// Offsets in elements of the arrays; `slot` is the position within the page.
//
// Words of codes, four of a key's dimensions or a dimension of four values, are [dim / 4][token] and [token / 4][dim] of a page
// and KV head. Where IsTiled(), those of 16 tokens follow each other, of keys [dim / 4][token], of values
// [dim / 16][token / 4][dim % 16]. Loads are answered eight lanes at a time, a clock for each line of 128 bytes of the path
// that they share with shared memory; whether eight lanes take 32 tokens, 32 dimensions, or both as a tensor core's operand
// does, this is two lines. Four words of neighbouring tokens, or dimensions, are 16 bytes either way.
struct KvLayout {
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;     // a multiple of 8
  int32_t page_tokens = 0;  // a power of two from 4 on
  int32_t page_shift = 0;   // page_tokens = 1 << page_shift

  STOCH_HD int64_t PageHead(int32_t page, int head) const { return static_cast<int64_t>(page) * num_kv_heads + head; }
  STOCH_HD int64_t Value(int32_t page, int head, int slot) const {
    return ((PageHead(page, head) << page_shift) + slot) * head_dim;
  }
  STOCH_HD int64_t Scale(int32_t page, int head, int slot) const { return (PageHead(page, head) << page_shift) + slot; }
  // Offset of dimensions 4 * word and on.
  STOCH_HD int64_t KWord(int32_t page, int head, int word, int slot) const {
    return (PageHead(page, head) * (head_dim / 4) << page_shift) + KeyWord(word) + KeySlot(slot);
  }
  // Offset of slots 4 * group and on.
  STOCH_HD int64_t VWord(int32_t page, int head, int group, int dim) const {
    return (PageHead(page, head) << (page_shift - 2)) * head_dim + ValueGroup(group) + ValueDim(dim);
  }

  // Offsets within a page and head. Strides of a tile: from a word of keys to the next, from four positions of values to the next
  // four, and from 16 dimensions to the next 16.
  static constexpr int kTile = 16;  // positions
  static constexpr int kTileKey = 16;
  static constexpr int kTileGroup = 16;
  static constexpr int kTileDims = 64;
  STOCH_HD bool IsTiled() const { return page_tokens >= kTile && head_dim % 16 == 0; }
  STOCH_HD int KeyWord(int word) const { return IsTiled() ? word * kTileKey : word << page_shift; }
  STOCH_HD int KeySlot(int slot) const { return IsTiled() ? (slot >> 4) * (4 * head_dim) + (slot & 15) : slot; }
  STOCH_HD int ValueGroup(int group) const {
    return IsTiled() ? (group >> 2) * (4 * head_dim) + (group & 3) * kTileGroup : group * head_dim;
  }
  STOCH_HD int ValueDim(int dim) const { return IsTiled() ? (dim >> 4) * kTileDims + (dim & 15) : dim; }
};

}  // namespace stoch::cuda
