// SPDX-License-Identifier: Apache-2.0
// SC products of many left rows by count vectors (PanelLoops): for a dimension and every right code one vector of
// all left rows' signed counts, a byte each. A right code then costs a load and two additions for as many rows as a
// register has bytes, where looking its count up in a row's own table costs a dozen instructions for each row.
//
// V is a register of the instruction set, a type without linkage, so that every instantiation stays inside the file that
// makes it (avx512.h says why); count_vectors_x86.h and panel_neon.cc have them. Its functions are always inlined:
//   Bytes, Words             GCC vectors of kBytes / 1 uint8_t, kBytes / 2 uint16_t
//   Gather(rows, at)         16 bytes from each of rows[i] + at, i < kBytes / 16, one after the other
//   Settle(v)                v is computed here: GCC makes a tree of a chain of additions, whose leaves do not fit registers
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/cpu/simd/simd.h"

namespace stoch::cpu {

// kWidth: left rows, V::kBytes or a multiple.
template <typename V, int kWidth>
struct CountVectors {
  using Bytes = typename V::Bytes;
  using Words = typename V::Words;
  static constexpr int kRegisters = kWidth / V::kBytes;
  static constexpr int kPieces = V::kBytes / 16;
  static constexpr int kLevels = 128;
  static constexpr int kCodes = 2 * kLevels;
  // Dimensions that share a visit of the right codes: their vectors take 256 KiB, which stay in an L2 cache.
  static constexpr int kDims = 1024 / kWidth;
  // Signed counts are stored as 128 + count, so that a 16-bit lane holds those of an even row, below, and of the odd row
  // after it. `all` sums whole lanes modulo 2^16, `odd` the upper bytes: even rows are all - 256 * odd.
  static constexpr int kBias = 128;
  struct Sums {  // sums for one right row
    Words all[kRegisters];
    Words odd[kRegisters];
  };
  static_assert(kDims * kCodes * kWidth == PanelLoops::kTableBytes && PanelLoops::kDims * 255 < 65536);

  // The 1 that a count of 128, stored as 127, lacks: added for the largest positive code, subtracted for the negative one.
  struct Excess {
    Sums sums;
    bool any = false;
  };

  // table[code][row] of one dimension, of levels up to `top`. Rows from num_left on count as 0.
  static void MakeTable(const ScPanelLeft* left, int64_t num_left, int64_t dim, int top, uint8_t* table,
                        Excess* excess) {
    alignas(64) static constexpr uint8_t kZeros[kLevels] = {};
    const uint8_t* rows[kWidth];
    alignas(64) uint8_t negative[kWidth];  // 0xff or 0
    for (int64_t t = 0; t < kWidth; ++t) {
      const bool used = t < num_left && left[t].bytes != nullptr;
      rows[t] = used ? left[t].bytes + left[t].offsets[dim] : kZeros;
      negative[t] = used && left[t].flips[dim] != 0 ? 0xff : 0;
    }
    excess->any = false;
    for (int r = 0; r < kRegisters; ++r) {
      Bytes invert;
      memcpy(&invert, negative + r * V::kBytes, sizeof(invert));
      const Bytes bias = kBias - invert;  // -count = ~count + 1
      for (int level = 0; level <= top; level += 16) {
        Bytes counts[16];
        Transpose(rows + r * V::kBytes, level, counts);
        for (int i = 0; i < 16; ++i) {
          if (level + i == top) SplitExcess(invert, r, &counts[i], excess);
          const Bytes positive = (counts[i] ^ invert) + bias;
          const Bytes negated = Bytes{} - positive;  // 256 - (128 + count)
          uint8_t* at = table + (level + i) * kWidth + r * V::kBytes;
          memcpy(at, &positive, sizeof(positive));
          memcpy(at + kLevels * kWidth, &negated, sizeof(negated));
        }
      }
    }
  }

  // sums of num_blocks * 64 right rows over dimensions [begin, begin + dims) of `blocks`, dims <= kDims: set where begin is
  // 0, else added to.
  static void Add(const uint8_t* table, int64_t begin, int64_t dims, int top, const Excess* excess,
                  const uint8_t* const* blocks, int64_t num_blocks, Sums* sums) {
    bool any = false;
    for (int64_t i = 0; i < dims; ++i) any = any || excess[i].any;
    for (int64_t b = 0; b < num_blocks; ++b, sums += kBlockRows) {
      const uint8_t* codes = blocks[b] + begin * kBlockRows;
      for (int64_t r = 0; r < kBlockRows; ++r) {
        Sums sum{};
        if (begin > 0) sum = sums[r];
        if (dims == kDims) {
          AddAll(table, codes + r, &sum, std::make_index_sequence<kDims>());
        } else {
          for (int64_t i = 0; i < dims; ++i) AddOne(table + i * kCodes * kWidth, codes[i * kBlockRows + r], &sum);
        }
        sums[r] = sum;
      }
      if (any) AddExcess(excess, dims, top, codes, sums);
    }
  }

  // acc[t * 64 + r] for 64 right rows from sums over `dims` dimensions.
  static void Finish(const Sums* sums, int64_t num_left, int64_t dims, bool add, int32_t* acc) {
    constexpr int kLanes = V::kBytes / 2;
    const uint16_t bias = static_cast<uint16_t>(kBias * dims);
    for (int64_t r = 0; r < kBlockRows; r += 8) {
      for (int g = 0; g < kRegisters; ++g) {
        alignas(64) uint16_t even[8][kLanes];
        alignas(64) uint16_t odd[8][kLanes];
        for (int i = 0; i < 8; ++i) {
          const Words upper = sums[r + i].odd[g];
          const Words lower = sums[r + i].all[g] - (upper << 8) - bias;
          const Words above = upper - bias;
          memcpy(even[i], &lower, sizeof(lower));
          memcpy(odd[i], &above, sizeof(above));
        }
        for (int lane = 0; lane < kLanes; lane += 8) {
          const int64_t row = g * V::kBytes + 2 * lane;
          StoreTile(&even[0][lane], kLanes, num_left - row, add, acc + row * kBlockRows + r);
          StoreTile(&odd[0][lane], kLanes, num_left - row - 1, add, acc + (row + 1) * kBlockRows + r);
        }
      }
    }
  }

 private:
  // counts[i] = the 16 * kPieces rows' bytes at level + i.
  __attribute__((always_inline)) static inline void Transpose(const uint8_t* const* rows, int64_t level,
                                                              Bytes* counts) {
    Bytes other[16];
    for (int i = 0; i < 16; ++i) {
      const uint8_t* pieces[kPieces];
      for (int p = 0; p < kPieces; ++p) pieces[p] = rows[16 * p + i];
      counts[i] = V::Gather(pieces, level);
    }
    // Four times the interleaving of rows i and i + 8 of 16 is a transposition.
    for (int pass = 0; pass < 2; ++pass) {
      Interleave(counts, other);
      Interleave(other, counts);
    }
  }
  __attribute__((always_inline)) static inline void Interleave(const Bytes* from, Bytes* to) {
    for (int i = 0; i < 8; ++i) {
      to[2 * i] = Unpack<0>(from[i], from[i + 8], std::make_index_sequence<V::kBytes>());
      to[2 * i + 1] = Unpack<8>(from[i], from[i + 8], std::make_index_sequence<V::kBytes>());
    }
  }
  // Bytes of a and b in turns, in pieces of 16, from byte kFrom of each piece on.
  template <size_t kFrom, size_t... kI>
  __attribute__((always_inline)) static inline Bytes Unpack(Bytes a, Bytes b, std::index_sequence<kI...>) {
    return __builtin_shufflevector(a, b, (kI / 16 * 16 + kFrom + kI % 16 / 2 + kI % 2 * V::kBytes)...);
  }

  __attribute__((always_inline)) static inline void SplitExcess(Bytes invert, int r, Bytes* counts, Excess* excess) {
    const Bytes one = (*counts >> 7) & 1;  // where the count is 128
    *counts -= one;
    const Words even = reinterpret_cast<Words>(one) & 0x00ff;
    const Words odd = reinterpret_cast<Words>(one) >> 8;
    const Words even_negative = reinterpret_cast<Words>(invert) << 8 >> 8;
    const Words odd_negative = reinterpret_cast<Words>(invert) >> 8;
    // 1 or -1 modulo 2^16: one - 2 * one where the row is negative.
    const Words even_sum = even - 2 * (even & even_negative);
    const Words odd_sum = odd - 2 * (odd & odd_negative);
    excess->sums.odd[r] = odd_sum;
    excess->sums.all[r] = even_sum + (odd_sum << 8);
    for (int i = 0; i < V::kBytes; ++i) excess->any = excess->any || one[i] != 0;
  }

  __attribute__((always_inline)) static inline void AddOne(const uint8_t* vectors, uint8_t code, Sums* sum) {
    const uint8_t* at = vectors + size_t{code} * kWidth;
    for (int g = 0; g < kRegisters; ++g) {
      Words counts;
      memcpy(&counts, __builtin_assume_aligned(at + g * V::kBytes, V::kBytes), sizeof(counts));
      V::Settle(counts);
      sum->all[g] += counts;
      sum->odd[g] += counts >> 8;
      V::Settle(sum->all[g]);
      V::Settle(sum->odd[g]);
    }
  }
  template <size_t... kI>
  __attribute__((always_inline)) static inline void AddAll(const uint8_t* table, const uint8_t* codes, Sums* sum,
                                                           std::index_sequence<kI...>) {
    (AddOne(table + kI * kCodes * kWidth, codes[kI * kBlockRows], sum), ...);
  }

  static void AddExcess(const Excess* excess, int64_t dims, int top, const uint8_t* codes, Sums* sums) {
    alignas(64) uint8_t found[kBlockRows];
    Bytes any[kBlockRows / V::kBytes] = {};
    for (int64_t i = 0; i < dims; ++i) {
      if (!excess[i].any) continue;
      for (int r = 0; r < kBlockRows / V::kBytes; ++r) {
        Bytes code;
        memcpy(&code, codes + i * kBlockRows + r * V::kBytes, sizeof(code));
        any[r] |= reinterpret_cast<Bytes>((code & 0x7f) == static_cast<uint8_t>(top));
      }
    }
    memcpy(found, any, sizeof(found));
    for (int64_t r = 0; r < kBlockRows; ++r) {
      if (found[r] == 0) continue;
      for (int64_t i = 0; i < dims; ++i) {
        const uint8_t code = codes[i * kBlockRows + r];
        if (!excess[i].any || (code & 0x7f) != top) continue;
        for (int g = 0; g < kRegisters; ++g) {
          const Words all = excess[i].sums.all[g];
          const Words odd = excess[i].sums.odd[g];
          sums[r].all[g] += (code & 0x80) != 0 ? -all : all;
          sums[r].odd[g] += (code & 0x80) != 0 ? -odd : odd;
        }
      }
    }
  }

  // acc[2 * i * 64 + j] = from[j][i] for i, j < 8 and 2 * i < rows, as signed numbers.
  __attribute__((always_inline)) static inline void StoreTile(const uint16_t* from, int64_t stride, int64_t rows,
                                                              bool add, int32_t* acc) {
    using Short = int16_t __attribute__((vector_size(16)));
    using Long = int32_t __attribute__((vector_size(32)));
    Short tile[8];
    Short other[8];
    for (int i = 0; i < 8; ++i) memcpy(&tile[i], from + i * stride, sizeof(Short));
    const auto interleave = [](const Short* a, Short* to) __attribute__((always_inline)) {
      for (int i = 0; i < 4; ++i) {
        to[2 * i] = __builtin_shufflevector(a[i], a[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        to[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
      }
    };
    interleave(tile, other);
    interleave(other, tile);
    interleave(tile, other);
    for (int64_t i = 0; i < 8 && 2 * i < rows; ++i) {
      Long sums = __builtin_convertvector(other[i], Long);
      int32_t* at = acc + 2 * i * kBlockRows;
      if (add) {
        Long before;
        memcpy(&before, at, sizeof(before));
        sums += before;
      }
      memcpy(at, &sums, sizeof(sums));
    }
  }
};

// PanelLoops for registers of 64, 32 and 16 bytes, or the largest there are.
template <typename V64, typename V32, typename V16>
struct Panel {
  template <typename Body>
  __attribute__((always_inline)) static inline void WithWidth(int64_t num_left, const Body& body) {
    if (num_left > 32) {
      body.template operator()<CountVectors<V64, 64>>();
    } else if (num_left > 16) {
      body.template operator()<CountVectors<V32, 32>>();
    } else {
      body.template operator()<CountVectors<V16, 16>>();
    }
  }

  static void Add(const ScPanelLeft* left, int64_t num_left, int64_t dims, int levels, const uint8_t* const* blocks,
                  int64_t num_blocks, uint8_t* table, uint16_t* sums) {
    WithWidth(
        num_left, [&]<typename Vectors>() __attribute__((always_inline)) {
          typename Vectors::Excess excess[Vectors::kDims];
          for (int64_t begin = 0; begin < dims; begin += Vectors::kDims) {
            const int64_t part = dims - begin < Vectors::kDims ? dims - begin : Vectors::kDims;
            for (int64_t i = 0; i < part; ++i) {
              Vectors::MakeTable(left, num_left, begin + i, levels - 1,
                                 table + i * (PanelLoops::kTableBytes / Vectors::kDims), &excess[i]);
            }
            Vectors::Add(table, begin, part, levels - 1, excess, blocks, num_blocks,
                         reinterpret_cast<typename Vectors::Sums*>(sums));
          }
        });
  }
  static void Sums(const uint16_t* sums, int64_t block, int64_t num_left, int64_t dims, bool add, int32_t* acc) {
    WithWidth(
        num_left, [&]<typename Vectors>() __attribute__((always_inline)) {
          Vectors::Finish(reinterpret_cast<const typename Vectors::Sums*>(sums) + block * kBlockRows, num_left, dims,
                          add, acc);
        });
  }
};

}  // namespace stoch::cpu
