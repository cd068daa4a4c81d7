// SPDX-License-Identifier: Apache-2.0
// Dot products of rows of integers, cut into register tiles (FixedLoops): 32-bit sums of products of 16 bits, widened
// before they can overflow.
//
// V is the instruction set: a type without linkage, so that every instantiation stays inside the file that makes it
// (../avx512.h says why):
//   Ints, kElements          a register of so many 16-bit integers, or of 32-bit sums
//   Sums                     a register of 64-bit sums
//   Load(p), Store(p, ints), Zero(), NoSums()
//   MultiplyAdd(acc, a, b)   32-bit sums plus the products of a and b: of two (one register) to a sum
//   Widen(sums, low, high)   64-bit sums plus low + kDigit * high
//   Total(sums)              of all lanes
//   Convert<kType>(row, i, scale), ConvertRest<kType>(row, i, count, scale)
//                            the integers of kElements numbers from number i on, or of 1 to kElements and zeros
//   WidenBytes(p)            the integers of kElements signed bytes
//   kTokens, kRows           rows of x and of integers of the tile of many rows of x
//   kStoredTokens, StoredRows(tokens)
//                            rows of x at most that stored rows meet at once, and how many of these
//   kAhead                   how far ahead of their use stored rows are prefetched into L2, in bytes
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cpu/simd/simd.h"

namespace stoch::cpu {

template <typename V>
struct FixedBy {
  using Ints = typename V::Ints;
  static constexpr int64_t kElements = V::kElements;
  // Steps whose products a 32-bit sum holds: 16 times two products of 32752 and 2048 at most are below 2^31.
  static constexpr int64_t kSteps = 16;
  static constexpr int64_t kLine = 64;
  static constexpr int64_t kByteRowsAhead = 6144;  // bytes that rows of bytes are prefetched into L2 ahead of use
  // Registers of a step. One row of either has few sums: two of each are added to in turns.
  static constexpr int Depth(int x_rows, int w_rows) { return x_rows * w_rows == 1 ? 2 : 1; }
  static_assert(2 * kElements <= FixedLoops::kPad);

  static void Convert(const void* row, DType dtype, int64_t n, float scale, int16_t* q) {
    const char* from = static_cast<const char*>(row);
    dtype == DType::kF16 ? ConvertRow<DType::kF16>(from, n, scale, q) : ConvertRow<DType::kBF16>(from, n, scale, q);
  }

  static void Dots(const FixedRows& x, int64_t num_x, const int16_t* q, int64_t q_stride, int64_t num_w, int64_t cols,
                   const void* next, int64_t* sums, int64_t sums_stride) {
    const char* ahead = static_cast<const char*>(next);
    const char* end = ahead == nullptr ? nullptr : ahead + num_w * cols * 2;
    int64_t t = 0;
    for (; t + V::kTokens <= num_x; t += V::kTokens) {
      Panel<V::kTokens>(At(x, t), q, q_stride, num_w, cols, &ahead, end, sums + t * sums_stride, sums_stride);
    }
    for (; t < num_x; ++t) {
      Panel<1>(At(x, t), q, q_stride, num_w, cols, &ahead, end, sums + t * sums_stride, sums_stride);
    }
  }

  static void Stored(const FixedRows& x, int64_t num_x, const ExactRows& w, const float* scales, int64_t num_w,
                     int64_t cols, int64_t* sums, int64_t sums_stride) {
    if (w.dtype == DType::kI8) return ByteRows(x, w, num_w, cols, sums);
    w.dtype == DType::kF16 ? StoredRows<DType::kF16>(x, num_x, w, scales, num_w, cols, sums, sums_stride)
                           : StoredRows<DType::kBF16>(x, num_x, w, scales, num_w, cols, sums, sums_stride);
  }

 private:
  static FixedRows At(const FixedRows& x, int64_t t) { return {x.low + t * x.stride, x.high + t * x.stride, x.stride}; }

  template <DType kType>
  static void ConvertRow(const char* row, int64_t n, float scale, int16_t* q) {
    int64_t i = 0;
    for (; i + kElements <= n; i += kElements) {
      __builtin_prefetch(row + i * 2 + V::kAhead, 0, 2);
      V::Store(q + i, V::template Convert<kType>(row, i, scale));
    }
    if (i < n) {
      V::Store(q + i, V::template ConvertRest<kType>(row, i, n - i, scale));
      i += kElements;
    }
    for (; i % FixedLoops::kPad != 0; i += kElements) V::Store(q + i, V::Zero());
  }

  template <int kX>
  static void Panel(const FixedRows& x, const int16_t* q, int64_t q_stride, int64_t num_w, int64_t cols,
                    const char** ahead, const char* end, int64_t* sums, int64_t sums_stride) {
    const auto tile = [&]<int kW>(int64_t r) __attribute__((always_inline)) {
      const int16_t* rows = q + r * q_stride;
      const auto load = [ rows, q_stride ](int row, int64_t i) __attribute__((always_inline)) {
        return V::Load(rows + row * q_stride + i);
      };
      if (*ahead >= end) {
        const auto nothing = [](int64_t) __attribute__((always_inline)){};
        return Tile<kX, kW>(x, cols, load, load, nothing, sums + r, sums_stride);
      }
      const char* from = *ahead;
      const auto prefetch = [from](int64_t i) __attribute__((always_inline)) {
        if (i * 2 % kLine == 0) __builtin_prefetch(from + i * 2, 0, 2);
      };
      Tile<kX, kW>(x, cols, load, load, prefetch, sums + r, sums_stride);
      *ahead += cols * 2;
    };
    int64_t r = 0;
    for (; r + V::kRows <= num_w; r += V::kRows) tile.template operator()<V::kRows>(r);
    for (; r < num_w; ++r) tile.template operator()<1>(r);
  }

  // Rows of w outermost: what one tile of them read from memory is in L1 for the next rows of x.
  template <DType kType>
  static void StoredRows(const FixedRows& x, int64_t num_x, const ExactRows& w, const float* scales, int64_t num_w,
                         int64_t cols, int64_t* sums, int64_t sums_stride) {
    const int64_t w_bytes = w.stride * 2;
    const char* rows = static_cast<const char*>(w.data);
    const auto walk = [&]<int kX, int kW>() __attribute__((always_inline)) {
      int64_t r = 0;
      for (; r + kW <= num_w; r += kW) {
        StoredColumn<kType, kX, kW>(x, num_x, rows + r * w_bytes, w_bytes, scales + r, cols, sums + r, sums_stride);
      }
      for (; r < num_w; ++r) {
        StoredColumn<kType, kX, 1>(x, num_x, rows + r * w_bytes, w_bytes, scales + r, cols, sums + r, sums_stride);
      }
    };
    num_x == 1 ? walk.template operator()<1, V::StoredRows(1)>()
               : walk.template operator()<V::kStoredTokens, V::StoredRows(V::kStoredTokens)>();
  }

  template <DType kType, int kX, int kW>
  static void StoredColumn(const FixedRows& x, int64_t num_x, const char* w, int64_t w_bytes, const float* scales,
                           int64_t cols, int64_t* sums, int64_t sums_stride) {
    int64_t t = 0;
    for (; t + kX <= num_x; t += kX) {
      StoredTile<kType, kX, kW>(At(x, t), w, w_bytes, scales, cols, t == 0, sums + t * sums_stride, sums_stride);
    }
    for (; t < num_x; ++t) {
      StoredTile<kType, 1, kW>(At(x, t), w, w_bytes, scales, cols, t == 0, sums + t * sums_stride, sums_stride);
    }
  }

  template <DType kType, int kX, int kW>
  static void StoredTile(const FixedRows& x, const char* w, int64_t w_bytes, const float* scales, int64_t cols,
                         bool first, int64_t* sums, int64_t sums_stride) {
    const auto load = [=](int row, int64_t i) __attribute__((always_inline)) {
      return V::template Convert<kType>(w + row * w_bytes, i, scales[row]);
    };
    const auto rest = [=](int row, int64_t i) __attribute__((always_inline)) {
      if (i >= cols) return V::Zero();
      return V::template ConvertRest<kType>(w + row * w_bytes, i, cols - i < kElements ? cols - i : kElements,
                                            scales[row]);
    };
    // On into the row that follows in this place of a tile.
    const auto prefetch = [=](int64_t i) __attribute__((always_inline)) {
      const int64_t bytes = i * 2 + V::kAhead;
      const char* at = w + bytes + (bytes < w_bytes ? 0 : (kW - 1) * w_bytes);
      for (int r = 0; r < kW; ++r) __builtin_prefetch(at + r * w_bytes, 0, 2);
    };
    const auto nothing = [](int64_t) __attribute__((always_inline)){};
    first ? Tile<kX, kW>(x, cols, load, rest, prefetch, sums, sums_stride)
          : Tile<kX, kW>(x, cols, load, rest, nothing, sums, sums_stride);
  }

  // Rows of bytes with one row of x, one by one: memory is what bounds them, and its lines come in order.
  static void ByteRows(const FixedRows& x, const ExactRows& w, int64_t num_w, int64_t cols, int64_t* sums) {
    for (int64_t r = 0; r < num_w; ++r) {
      const char* row = static_cast<const char*>(w.data) + r * w.stride;
      const auto load = [row](int, int64_t i) __attribute__((always_inline)) { return V::WidenBytes(row + i); };
      const auto prefetch = [row](int64_t i) __attribute__((always_inline)) {
        __builtin_prefetch(row + i + kByteRowsAhead, 0, 2);
      };
      Tile<1, 1>(x, cols, load, load, prefetch, sums + r, 1);
    }
  }

  // kX rows of x times kW rows of w, whose integers are load(row, i) and, at the end of a row, rest(row, i).
  template <int kX, int kW, typename LoadBy, typename RestBy, typename PrefetchBy>
  __attribute__((always_inline)) static inline void Tile(const FixedRows& x, int64_t cols, const LoadBy& load,
                                                         const RestBy& rest, const PrefetchBy& prefetch, int64_t* out,
                                                         int64_t out_stride) {
    typename V::Sums sums[kX * kW];
    for (typename V::Sums& sum : sums) sum = V::NoSums();
    constexpr int64_t kStep = Depth(kX, kW) * kElements;
    constexpr int64_t kChunk = kSteps * kStep;
    const int64_t whole = cols - cols % kStep;
    for (int64_t begin = 0; begin < whole; begin += kChunk) {
      const int64_t end = begin + kChunk < whole ? begin + kChunk : whole;
      Chunk<kX, kW>(x.low, x.high, x.stride, begin, end, load, prefetch, sums);
    }
    if (whole < cols) Chunk<kX, kW>(x.low, x.high, x.stride, whole, cols, rest, prefetch, sums);
    for (int t = 0; t < kX; ++t) {
      for (int r = 0; r < kW; ++r) out[t * out_stride + r] = V::Total(sums[t * kW + r]);
    }
  }

  // Columns [begin, end) of them: one to kSteps steps. Not inlined: the 64-bit sums of a tile would take the registers
  // of the 32-bit ones.
  template <int kX, int kW, typename LoadBy, typename PrefetchBy>
  __attribute__((noinline)) static void Chunk(const int16_t* low, const int16_t* high, int64_t stride, int64_t begin,
                                              int64_t end, const LoadBy& load_by, const PrefetchBy& prefetch_by,
                                              typename V::Sums* sums) {
    constexpr int kDepth = Depth(kX, kW);
    const LoadBy load = load_by;  // copies, so that members stay in registers
    const PrefetchBy prefetch = prefetch_by;
    Ints acc[kDepth * kX * kW * 2];
    Unroll<kDepth * kX * kW * 2>([&](auto j) __attribute__((always_inline)) { acc[j] = V::Zero(); });
    int64_t i = begin;
    do {  // at least once: GCC 12 keeps sums in memory where the loop may be skipped
      prefetch(i);
      Unroll<kDepth>([&](auto d) __attribute__((always_inline)) {
        Ints weights[kW];
        Unroll<kW>([&](auto r) __attribute__((always_inline)) { weights[r] = load(r, i); });
        Unroll<kX>([&](auto t) __attribute__((always_inline)) {
          const Ints first = V::Load(low + t * stride + i);
          Unroll<kW>([&](auto r) __attribute__((always_inline)) {
            Ints& sum = acc[2 * ((d * kX + t) * kW + r)];
            sum = V::MultiplyAdd(sum, first, weights[r]);
          });
          const Ints second = V::Load(high + t * stride + i);
          Unroll<kW>([&](auto r) __attribute__((always_inline)) {
            Ints& sum = acc[2 * ((d * kX + t) * kW + r) + 1];
            sum = V::MultiplyAdd(sum, second, weights[r]);
          });
        });
        i += kElements;
      });
    } while (i < end);
    Unroll<kDepth * kX * kW>([&](auto j) __attribute__((always_inline)) {
      typename V::Sums& sum = sums[j % (kX * kW)];
      sum = V::Widen(sum, acc[2 * j], acc[2 * j + 1]);
    });
  }

  // body(0), body(1), .. with constants, so that arrays of registers are registers.
  template <int kCount, typename Body>
  __attribute__((always_inline)) static inline void Unroll(const Body& body) {
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
      (body(std::integral_constant<int, kIndex>()), ...);
    }
    (std::make_integer_sequence<int, kCount>());
  }
};

}  // namespace stoch::cpu
