// SPDX-License-Identifier: Apache-2.0
// SC products by the staircase form of the count table (ScTable::stairs), for vectors of any width whose byte shuffle
// looks 16 entries up: two look-ups and a few bits to count instead of eight look-ups and a tree of blends.
//
// V is the instruction set: a type without linkage, so that every instantiation stays inside the file that makes it
// (avx512.h says why). Its functions are always inlined:
//   kRows                    rows, a byte each, of a register
//   Load(p), Store(p, v)     kRows bytes, aligned or not
//   Zero()
//   Table(p)                 16 entries
//   Look(table, index)       index 0..15
//   And, Add                 of bytes
//   High(codes)              (code >> 3) & 15
//   Mask(codes)              (1 << (code & 7)) - 1
//   Ones(v)                  the number of ones of each byte; bit 7 is not set
//   MakeSigns(codes0, codes1, flip0, flip1)  for AddPair: the signs of codes of two dimensions, changed where the flip
//                            of the dimension is kFlip and not 0; those of codes 0, whose count is 0, do not matter
//   AddPair(sums, counts0, counts1, signs)   counts of up to 255; sums hold kSegment / 2 of them
//   Widen(sums, add, acc)    sums as kRows numbers of 32 bits, set or added
#pragma once

#include <cstdint>

#include "kernels/cpu/simd/simd.h"

namespace stoch::cpu {

template <typename V>
struct Staircase {
  using Bytes = typename V::Bytes;
  using Signs = typename V::Signs;
  using Sums = typename V::Sums;
  static constexpr int kParts = kBlockRows / V::kRows;  // registers of a block's rows

  // Pairs add at most 2 * 255 to sums of 16 bits, so 64 of them stay below 32767.
  static constexpr int64_t kSegment = 128;
  // Blocks that one left row visits together: one, where sums of several do not fit the registers.
  static constexpr int kTogether = kParts == 1 ? 4 : 1;
  // What several left rows share is made once for so many dimensions: 12 KiB, which stay in the L1 cache.
  static constexpr int64_t kShared = 32;
  // How far ahead of their use codes are prefetched into L2 and into L1, in bytes of a block. What a core asks memory
  // for on behalf of L1 alone is too little: on a Zen 4 a thread reads 14 GB/s that way, 28 by way of L2.
  static constexpr int64_t kAhead = 6144;
  static constexpr int64_t kNear = 512;
  // ScLeft::offsets count bytes of table rows.
  static constexpr uint32_t kPerStair = ScTable::kRowBytes / ScTable::kStairBytes;

  // What a dimension of a left row looks up.
  struct Stairs {
    Bytes base, rises;
  };
  __attribute__((always_inline)) static inline Stairs LoadStairs(const uint8_t* stairs, uint32_t offset) {
    const uint8_t* row = stairs + offset / kPerStair;
    return {V::Table(row), V::Table(row + ScTable::kStairBytes / 2)};
  }

  __attribute__((always_inline)) static inline void PrefetchPair(const uint8_t* codes) {
    for (int i = 0; i < 2; ++i, codes += kBlockRows) {
      __builtin_prefetch(codes + kAhead, 0, 2);
      __builtin_prefetch(codes + kNear, 0, 3);
    }
  }

  __attribute__((always_inline)) static inline Bytes Count(const Stairs& stairs, Bytes high, Bytes mask) {
    const Bytes risen = V::And(V::Look(stairs.rises, high), mask);
    return V::Add(V::Look(stairs.base, high), V::Ones(risen));
  }

  // One left row against kBlocks blocks, dimensions [begin, begin + dims) of both, dims <= kSegment. The stairs of a pair
  // of dimensions are loaded once for all blocks.
  template <int kBlocks>
  static void Single(const uint8_t* stairs, const ScLeft& left, int64_t begin, int64_t dims, const uint8_t* blocks,
                     int64_t block_stride, int32_t* acc) {
    Sums sums[kBlocks][kParts] = {};
    const auto add_pair = [&](Sums & sum, Bytes code0, Bytes code1, const Stairs& stairs0, const Stairs& stairs1,
                              const uint8_t flip0, const uint8_t flip1) __attribute__((always_inline)) {
      const Bytes count0 = Count(stairs0, V::High(code0), V::Mask(code0));
      const Bytes count1 = Count(stairs1, V::High(code1), V::Mask(code1));
      V::AddPair(sum, count0, count1, V::MakeSigns(code0, code1, flip0, flip1));
    };
    const uint32_t* offsets = left.offsets + begin;
    const uint8_t* flips = left.flips + begin;
    const uint8_t* codes = blocks + begin * kBlockRows;
    int64_t i = 0;
    for (; i + 2 <= dims; i += 2, offsets += 2, flips += 2, codes += 2 * kBlockRows) {
      const Stairs stairs0 = LoadStairs(stairs, offsets[0]);
      const Stairs stairs1 = LoadStairs(stairs, offsets[1]);
      for (int b = 0; b < kBlocks; ++b) {
        const uint8_t* block = codes + b * block_stride;
        PrefetchPair(block);
        for (int p = 0; p < kParts; ++p) {
          const uint8_t* at = block + p * V::kRows;
          add_pair(sums[b][p], V::Load(at), V::Load(at + kBlockRows), stairs0, stairs1, flips[0], flips[1]);
        }
      }
    }
    if (i < dims) {  // the last dimension of an odd count is paired with codes 0
      const Stairs last = LoadStairs(stairs, offsets[0]);
      for (int b = 0; b < kBlocks; ++b) {
        for (int p = 0; p < kParts; ++p) {
          const Bytes code = V::Load(codes + b * block_stride + p * V::kRows);
          add_pair(sums[b][p], code, V::Zero(), last, last, flips[0], 0);
        }
      }
    }
    for (int b = 0; b < kBlocks; ++b) {
      for (int p = 0; p < kParts; ++p) V::Widen(sums[b][p], begin > 0, acc + b * kBlockRows + p * V::kRows);
    }
  }

  // One left row against kBlocks blocks, all dimensions.
  template <int kBlocks>
  static void AllDims(const uint8_t* stairs, const ScLeft& left, int64_t dims, const uint8_t* blocks,
                      int64_t block_stride, int32_t* acc) {
    for (int64_t begin = 0; begin < dims; begin += kSegment) {
      const int64_t part = dims - begin < kSegment ? dims - begin : kSegment;
      Single<kBlocks>(stairs, left, begin, part, blocks, block_stride, acc);
    }
  }

  // What depends on the codes of a pair of dimensions alone, of a block's rows; signs for every pair of flips.
  struct SharedPair {
    alignas(64) uint8_t high0[kBlockRows];
    uint8_t high1[kBlockRows];
    uint8_t mask0[kBlockRows];
    uint8_t mask1[kBlockRows];
    uint8_t signs0[4][kBlockRows];
    uint8_t signs1[4][kBlockRows];
  };

  __attribute__((always_inline)) static inline void SharePair(const uint8_t* codes0, const uint8_t* codes1,
                                                              SharedPair* shared) {
    for (int r = 0; r < kBlockRows; r += V::kRows) {
      const Bytes code0 = V::Load(codes0 + r);
      const Bytes code1 = V::Load(codes1 + r);
      V::Store(shared->high0 + r, V::High(code0));
      V::Store(shared->high1 + r, V::High(code1));
      V::Store(shared->mask0 + r, V::Mask(code0));
      V::Store(shared->mask1 + r, V::Mask(code1));
      for (int f = 0; f < 4; ++f) {
        const Signs signs = V::MakeSigns(code0, code1, (f & 1) != 0 ? kFlip : 0, (f & 2) != 0 ? kFlip : 0);
        V::Store(shared->signs0[f] + r, signs.first);
        V::Store(shared->signs1[f] + r, signs.second);
      }
    }
  }

  // One left row against shared pairs; the last is half a pair where dims is odd.
  static void Row(const uint8_t* stairs, const ScLeft& left, int64_t begin, int64_t dims, const SharedPair* shared,
                  int32_t* acc) {
    Sums sums[kParts] = {};
    const auto add_pair = [&](const SharedPair& pair, uint32_t offset0, uint32_t offset1, uint32_t flip0,
                              uint32_t flip1) __attribute__((always_inline)) {
      const Stairs stairs0 = LoadStairs(stairs, offset0);
      const Stairs stairs1 = LoadStairs(stairs, offset1);
      static_assert(kBlockRows == 64 && (kFlip & 0xc0) == 0xc0);
      const uint32_t variant = (flip0 & 0x40) | (flip1 & 0x80);  // times kBlockRows
      for (int p = 0; p < kParts; ++p) {
        const int r = p * V::kRows;
        const Bytes count0 = Count(stairs0, V::Load(pair.high0 + r), V::Load(pair.mask0 + r));
        const Bytes count1 = Count(stairs1, V::Load(pair.high1 + r), V::Load(pair.mask1 + r));
        const Signs signs{V::Load(pair.signs0[0] + variant + r), V::Load(pair.signs1[0] + variant + r)};
        V::AddPair(sums[p], count0, count1, signs);
      }
    };
    const uint32_t* offsets = left.offsets + begin;
    const uint8_t* flips = left.flips + begin;
    const SharedPair* const end = shared + dims / 2;
    for (; shared < end; ++shared, offsets += 2, flips += 2) {
      add_pair(*shared, offsets[0], offsets[1], flips[0], flips[1]);
    }
    if (dims % 2 != 0) add_pair(*shared, offsets[0], offsets[0], flips[0], 0);
    for (int p = 0; p < kParts; ++p) V::Widen(sums[p], begin > 0, acc + p * V::kRows);
  }

  // num_left left rows against one block, dimensions [begin, begin + dims), dims <= kShared.
  static void Several(const uint8_t* stairs, const ScLeft* left, int64_t num_left, int64_t begin, int64_t dims,
                      const uint8_t* block, int64_t acc_step, int32_t* acc) {
    static constexpr uint8_t kZeros[kBlockRows] = {};
    SharedPair shared[kShared / 2];
    const uint8_t* codes = block + begin * kBlockRows;
    for (int64_t i = 0; i < dims; i += 2, codes += 2 * kBlockRows) {
      PrefetchPair(codes);
      SharePair(codes, i + 1 < dims ? codes + kBlockRows : kZeros, &shared[i / 2]);
    }
    for (int64_t t = 0; t < num_left; ++t) Row(stairs, left[t], begin, dims, shared, acc + t * acc_step);
  }

  // Simd::sc_block. Requires: table.stairs.
  static void Block(const ScTable& table, const ScLeft* left, int64_t num_left, int64_t dims, const uint8_t* blocks,
                    int64_t block_stride, int64_t num_blocks, int32_t* acc) {
    int64_t b = 0;
    if (num_left == 1) {
      for (; b + kTogether <= num_blocks; b += kTogether) {
        AllDims<kTogether>(table.stairs, left[0], dims, blocks + b * block_stride, block_stride, acc + b * kBlockRows);
      }
      for (; b < num_blocks; ++b) {  // what remains
        AllDims<1>(table.stairs, left[0], dims, blocks + b * block_stride, block_stride, acc + b * kBlockRows);
      }
      return;
    }
    for (; b < num_blocks; ++b) {
      for (int64_t begin = 0; begin < dims; begin += kShared) {
        const int64_t part = dims - begin < kShared ? dims - begin : kShared;
        Several(table.stairs, left, num_left, begin, part, blocks + b * block_stride, num_blocks * kBlockRows,
                acc + b * kBlockRows);
      }
    }
  }
};

}  // namespace stoch::cpu
