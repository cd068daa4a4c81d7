// SPDX-License-Identifier: Apache-2.0
// SC products by two look-ups of 16 entries a product, for vectors of any width whose byte shuffle looks 16 entries up. A
// row of the count table is 32 bytes, in one of the two forms of ScTable: averages, or a staircase.
//
// V is the instruction set: a type without linkage, so that every instantiation stays inside the file that makes it
// (avx512.h says why). Its functions are always inlined:
//   kRows                    rows, a byte each, of a register
//   Load(p), Store(p, v)     kRows bytes, aligned or not
//   Zero()
//   Table(p)                 16 entries
//   Look(table, index)       index 0..15
//   And, Add                 of bytes
//   Low(v), Nibble(v)        v & 15, v >> 4 & 15
//   Boundary(codes)          level + (level > 63), level = code & 127
//   Average(a, b)            what ScTable::averages are for: the count of two entries
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

// A form says which two indices a code has (Indices) and what the entries there count (Count).
template <typename V>
struct StairForm {
  using Bytes = typename V::Bytes;
  __attribute__((always_inline)) static inline Bytes First(Bytes codes) { return V::High(codes); }
  __attribute__((always_inline)) static inline Bytes Second(Bytes codes) { return V::Mask(codes); }
  __attribute__((always_inline)) static inline Bytes Count(Bytes base, Bytes rises, Bytes high, Bytes mask) {
    return V::Add(V::Look(base, high), V::Ones(V::And(V::Look(rises, high), mask)));
  }
};
template <typename V>
struct AverageForm {
  using Bytes = typename V::Bytes;
  __attribute__((always_inline)) static inline Bytes First(Bytes codes) { return V::Nibble(V::Boundary(codes)); }
  __attribute__((always_inline)) static inline Bytes Second(Bytes codes) { return V::Low(V::Boundary(codes)); }
  __attribute__((always_inline)) static inline Bytes Count(Bytes high, Bytes low, Bytes h, Bytes l) {
    return V::Average(V::Look(high, h), V::Look(low, l));
  }
};

template <typename V, typename Form>
struct TwoLookups {
  using Bytes = typename V::Bytes;
  using Signs = typename V::Signs;
  using Sums = typename V::Sums;
  static constexpr int kParts = kBlockRows / V::kRows;  // registers of a block's rows

  // Pairs add at most 2 * 255 to sums of 16 bits, so 64 of them stay below 32767.
  static constexpr int64_t kSegment = 128;
  // Blocks that one left row visits together: one, where sums of several do not fit the registers.
  static constexpr int kTogether = kParts == 1 ? 4 : 1;
  // Tables that several left rows share are made once for so many dimensions: 12 KiB, which stay in the L1 cache.
  static constexpr int64_t kShared = 32;
  // How far ahead of their use codes are prefetched into L2 and into L1, in bytes of a block. What a core asks memory
  // for on behalf of L1 alone is too little: on a Zen 4 a thread reads 14 GB/s that way, 28 by way of L2.
  static constexpr int64_t kAhead = 6144;
  static constexpr int64_t kNear = 512;
  // ScLeft::offsets count bytes of table rows.
  static constexpr uint32_t kPerRow = ScTable::kRowBytes / ScTable::kPairBytes;

  // Look-up tables of a dimension of a left row.
  struct Entries {
    Bytes first, second;
  };
  __attribute__((always_inline)) static inline Entries LoadEntries(const uint8_t* rows, uint32_t offset) {
    const uint8_t* row = rows + offset / kPerRow;
    return {V::Table(row), V::Table(row + ScTable::kPairBytes / 2)};
  }

  __attribute__((always_inline)) static inline void PrefetchPair(const uint8_t* codes) {
    for (int i = 0; i < 2; ++i, codes += kBlockRows) {
      __builtin_prefetch(codes + kAhead, 0, 2);
      __builtin_prefetch(codes + kNear, 0, 3);
    }
  }

  __attribute__((always_inline)) static inline Bytes Count(const Entries& entries, Bytes first, Bytes second) {
    return Form::Count(entries.first, entries.second, first, second);
  }

  // One left row against kBlocks blocks, dimensions [begin, begin + dims) of both, dims <= kSegment. The entries of a
  // pair of dimensions are loaded once for all blocks.
  template <int kBlocks>
  static void Single(const uint8_t* rows, const ScLeft& left, int64_t begin, int64_t dims, const uint8_t* blocks,
                     int64_t block_stride, int32_t* acc) {
    Sums sums[kBlocks][kParts] = {};
    const auto add_pair = [&](Sums & sum, Bytes code0, Bytes code1, const Entries& entries0, const Entries& entries1,
                              const uint8_t flip0, const uint8_t flip1) __attribute__((always_inline)) {
      const Bytes count0 = Count(entries0, Form::First(code0), Form::Second(code0));
      const Bytes count1 = Count(entries1, Form::First(code1), Form::Second(code1));
      V::AddPair(sum, count0, count1, V::MakeSigns(code0, code1, flip0, flip1));
    };
    const uint32_t* offsets = left.offsets + begin;
    const uint8_t* flips = left.flips + begin;
    const uint8_t* codes = blocks + begin * kBlockRows;
    int64_t i = 0;
    for (; i + 2 <= dims; i += 2, offsets += 2, flips += 2, codes += 2 * kBlockRows) {
      const Entries entries0 = LoadEntries(rows, offsets[0]);
      const Entries entries1 = LoadEntries(rows, offsets[1]);
      for (int b = 0; b < kBlocks; ++b) {
        const uint8_t* block = codes + b * block_stride;
        PrefetchPair(block);
        for (int p = 0; p < kParts; ++p) {
          const uint8_t* at = block + p * V::kRows;
          add_pair(sums[b][p], V::Load(at), V::Load(at + kBlockRows), entries0, entries1, flips[0], flips[1]);
        }
      }
    }
    if (i < dims) {  // the last dimension of an odd count is paired with codes 0
      const Entries last = LoadEntries(rows, offsets[0]);
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
  static void AllDims(const uint8_t* rows, const ScLeft& left, int64_t dims, const uint8_t* blocks,
                      int64_t block_stride, int32_t* acc) {
    for (int64_t begin = 0; begin < dims; begin += kSegment) {
      const int64_t part = dims - begin < kSegment ? dims - begin : kSegment;
      Single<kBlocks>(rows, left, begin, part, blocks, block_stride, acc);
    }
  }

  // Values that depend on the codes of a pair of dimensions alone, of a block's rows; signs for every pair of flips.
  struct SharedPair {
    alignas(64) uint8_t first0[kBlockRows];
    uint8_t first1[kBlockRows];
    uint8_t second0[kBlockRows];
    uint8_t second1[kBlockRows];
    uint8_t signs0[4][kBlockRows];
    uint8_t signs1[4][kBlockRows];
  };

  __attribute__((always_inline)) static inline void SharePair(const uint8_t* codes0, const uint8_t* codes1,
                                                              SharedPair* shared) {
    for (int r = 0; r < kBlockRows; r += V::kRows) {
      const Bytes code0 = V::Load(codes0 + r);
      const Bytes code1 = V::Load(codes1 + r);
      V::Store(shared->first0 + r, Form::First(code0));
      V::Store(shared->first1 + r, Form::First(code1));
      V::Store(shared->second0 + r, Form::Second(code0));
      V::Store(shared->second1 + r, Form::Second(code1));
      for (int f = 0; f < 4; ++f) {
        const Signs signs = V::MakeSigns(code0, code1, (f & 1) != 0 ? kFlip : 0, (f & 2) != 0 ? kFlip : 0);
        V::Store(shared->signs0[f] + r, signs.first);
        V::Store(shared->signs1[f] + r, signs.second);
      }
    }
  }

  // One left row against shared pairs; the last is half a pair where dims is odd.
  static void Row(const uint8_t* rows, const ScLeft& left, int64_t begin, int64_t dims, const SharedPair* shared,
                  int32_t* acc) {
    Sums sums[kParts] = {};
    const auto add_pair = [&](const SharedPair& pair, uint32_t offset0, uint32_t offset1, uint32_t flip0,
                              uint32_t flip1) __attribute__((always_inline)) {
      const Entries entries0 = LoadEntries(rows, offset0);
      const Entries entries1 = LoadEntries(rows, offset1);
      static_assert(kBlockRows == 64 && (kFlip & 0xc0) == 0xc0);
      const uint32_t variant = (flip0 & 0x40) | (flip1 & 0x80);  // times kBlockRows
      for (int p = 0; p < kParts; ++p) {
        const int r = p * V::kRows;
        const Bytes count0 = Count(entries0, V::Load(pair.first0 + r), V::Load(pair.second0 + r));
        const Bytes count1 = Count(entries1, V::Load(pair.first1 + r), V::Load(pair.second1 + r));
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
  static void Several(const uint8_t* rows, const ScLeft* left, int64_t num_left, int64_t begin, int64_t dims,
                      const uint8_t* block, int64_t acc_step, int32_t* acc) {
    static constexpr uint8_t kZeros[kBlockRows] = {};
    SharedPair shared[kShared / 2];
    const uint8_t* codes = block + begin * kBlockRows;
    for (int64_t i = 0; i < dims; i += 2, codes += 2 * kBlockRows) {
      PrefetchPair(codes);
      SharePair(codes, i + 1 < dims ? codes + kBlockRows : kZeros, &shared[i / 2]);
    }
    for (int64_t t = 0; t < num_left; ++t) Row(rows, left[t], begin, dims, shared, acc + t * acc_step);
  }

  // Simd::sc_block of the rows of 32 bytes of a table in this form.
  static void Block(const uint8_t* rows, const ScLeft* left, int64_t num_left, int64_t dims, const uint8_t* blocks,
                    int64_t block_stride, int64_t num_blocks, int32_t* acc) {
    int64_t b = 0;
    if (num_left == 1) {
      for (; b + kTogether <= num_blocks; b += kTogether) {
        AllDims<kTogether>(rows, left[0], dims, blocks + b * block_stride, block_stride, acc + b * kBlockRows);
      }
      for (; b < num_blocks; ++b) {  // remaining blocks
        AllDims<1>(rows, left[0], dims, blocks + b * block_stride, block_stride, acc + b * kBlockRows);
      }
      return;
    }
    for (; b < num_blocks; ++b) {
      for (int64_t begin = 0; begin < dims; begin += kShared) {
        const int64_t part = dims - begin < kShared ? dims - begin : kShared;
        Several(rows, left, num_left, begin, part, blocks + b * block_stride, num_blocks * kBlockRows,
                acc + b * kBlockRows);
      }
    }
  }
};

}  // namespace stoch::cpu
