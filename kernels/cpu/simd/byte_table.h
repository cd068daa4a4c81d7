// SPDX-License-Identifier: Apache-2.0
// SC products of blocks by two look-ups of 16 entries where the operator has such a table, else by its byte table
// (ScTable): what instruction sets without a look-up of 128 bytes share.
//
// V is the instruction set of two_lookups.h. B is a type without linkage too:
//   Segment(bytes, left, begin, dims, block, acc)   one left row against one block over dims <= kSegment dimensions from
//                                                   `begin` on, by the byte table; set where begin is 0, else added
#pragma once

#include <cstdint>

#include "kernels/cpu/simd/two_lookups.h"

namespace stoch::cpu {

template <typename V, typename B>
struct ByteTable {
  // Arguments as Simd::sc_block.
  static void Block(const ScTable& table, const ScLeft* left, int64_t num_left, int64_t first_dim, int64_t dims,
                    const uint8_t* blocks, int64_t block_stride, int64_t num_blocks, int32_t* acc) {
    switch (table.form()) {
      case ScForm::kCounts:  // codes of 256 levels, signs in the table
        return ScalarSimd().sc_block(table, left, num_left, first_dim, dims, blocks, block_stride, num_blocks, acc);
      case ScForm::kAverages:
        return TwoLookups<V, AverageForm<V>>::Block(table.averages, left, num_left, dims, blocks, block_stride,
                                                    num_blocks, acc);
      case ScForm::kStairs:
        return TwoLookups<V, StairForm<V>>::Block(table.stairs, left, num_left, dims, blocks, block_stride, num_blocks,
                                                  acc);
      case ScForm::kBytes: return Bytes(table, left, num_left, dims, blocks, block_stride, num_blocks, acc);
    }
  }

 private:
  static void Bytes(const ScTable& table, const ScLeft* left, int64_t num_left, int64_t dims, const uint8_t* blocks,
                    int64_t block_stride, int64_t num_blocks, int32_t* acc) {
    constexpr int64_t kSegment = TwoLookups<V, StairForm<V>>::kSegment;
    for (int64_t t = 0; t < num_left; ++t) {
      for (int64_t b = 0; b < num_blocks; ++b, acc += kBlockRows) {
        const uint8_t* block = blocks + b * block_stride;
        for (int64_t begin = 0; begin < dims; begin += kSegment) {
          B::Segment(table.bytes, left[t], begin, dims - begin < kSegment ? dims - begin : kSegment, block, acc);
        }
        AddWide(table, left[t], block, acc);
      }
    }
  }

  // Adds 256 * sign for every count of 256, which the byte table holds as 0.
  static void AddWide(const ScTable& table, const ScLeft& left, const uint8_t* block, int32_t* acc) {
    for (int64_t n = 0; n < left.num_wide; ++n) {
      const int64_t d = left.wide[n];
      const uint8_t* ones =
          table.wide_bytes + table.wide_row[left.offsets[d] / ScTable::kRowBytes] * ScTable::kRowBytes;
      for (int r = 0; r < kBlockRows; ++r) {
        const uint8_t code = block[d * kBlockRows + r];
        const int32_t amount = 256 * ones[code & 0x7f];
        acc[r] += ((code & 0x80) != 0) != (left.flips[d] != 0) ? -amount : amount;
      }
    }
  }
};

}  // namespace stoch::cpu
