// SPDX-License-Identifier: Apache-2.0
// SC products with AVX-512 VBMI: vpermi2b looks 64 weights up in a 128-byte table row at once.
#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/simd/avx512.h"

namespace stoch::cpu::avx512 {
namespace {

// Counts are at most 255 here (256 is added by AddWide), so a pair of dimensions adds at most 510 to a 16-bit lane and
// 64 pairs stay below 32767.
constexpr int64_t kSegment = 128;

// How far ahead of their use codes are prefetched into L2 and into L1, in bytes of a block: the hardware's own
// prefetching starts again in every chunk of every block and comes late. What a core asks memory for on behalf of L1
// alone is too little on a Zen 4: 15 GB/s on one thread instead of 21.
constexpr int64_t kAhead = 4096;
constexpr int64_t kNear = 512;
// Prefetch distance of table rows, in dimensions: all rows together are as large as L2 (another 4 %).
constexpr int64_t kRowsAhead = 32;

// Table rows and sign flips of one row of a for a pair of dimensions.
struct PairRow {
  __m512i table0_low, table0_high, table1_low, table1_high;
  __m512i flip;
};

__attribute__((always_inline)) inline PairRow LoadPair(const uint8_t* bytes, const ScLeft& left, int64_t dim) {
  const uint8_t* row0 = bytes + left.offsets[dim];
  const uint8_t* row1 = bytes + left.offsets[dim + 1];
  int16_t flips;
  memcpy(&flips, left.flips + dim, sizeof(flips));
  return {_mm512_loadu_si512(row0), _mm512_loadu_si512(row0 + 64), _mm512_loadu_si512(row1),
          _mm512_loadu_si512(row1 + 64), _mm512_set1_epi16(flips)};
}

__attribute__((always_inline)) inline void PrefetchRow(const uint8_t* row) {
  _mm_prefetch(row, _MM_HINT_T0);
  _mm_prefetch(row + 64, _MM_HINT_T0);
}

// The last dimension of an odd count; it is paired with codes 0, so that its own table row serves for both.
__attribute__((always_inline)) inline PairRow LoadLast(const uint8_t* bytes, const ScLeft& left, int64_t dim) {
  const uint8_t* row = bytes + left.offsets[dim];
  const __m512i low = _mm512_loadu_si512(row);
  const __m512i high = _mm512_loadu_si512(row + 64);
  return {low, high, low, high, _mm512_set1_epi16(left.flips[dim])};
}

// kRows rows of a against kBlocks blocks, dimensions [begin, begin + dims) of both, dims <= kSegment. The table rows of
// a pair of dimensions are loaded once for all blocks, the codes once for all rows. kFirst: codes come from memory.
template <int kRows, int kBlocks, bool kFirst>
__attribute__((always_inline)) inline void Tile(const uint8_t* bytes, const ScLeft* left, int64_t begin, int64_t dims,
                                                const uint8_t* blocks, int64_t block_stride, int64_t num_blocks,
                                                int32_t* acc) {
  __m512i low[kRows][kBlocks];
  __m512i high[kRows][kBlocks];
  for (int t = 0; t < kRows; ++t) {
    for (int b = 0; b < kBlocks; ++b) low[t][b] = high[t][b] = _mm512_setzero_si512();
  }
  const auto add_pair = [&](int b, __m512i code0, __m512i code1, const PairRow* rows) __attribute__((always_inline)) {
    const __m512i sign_low = Signs(_mm512_unpacklo_epi8(code0, code1));
    const __m512i sign_high = Signs(_mm512_unpackhi_epi8(code0, code1));
    for (int t = 0; t < kRows; ++t) {
      // The index ignores bit 7, the sign.
      const __m512i count0 = _mm512_permutex2var_epi8(rows[t].table0_low, code0, rows[t].table0_high);
      const __m512i count1 = _mm512_permutex2var_epi8(rows[t].table1_low, code1, rows[t].table1_high);
      const __m512i counts_low = _mm512_unpacklo_epi8(count0, count1);
      const __m512i counts_high = _mm512_unpackhi_epi8(count0, count1);
      const __m512i signed_low = _mm512_maddubs_epi16(counts_low, _mm512_xor_si512(sign_low, rows[t].flip));
      const __m512i signed_high = _mm512_maddubs_epi16(counts_high, _mm512_xor_si512(sign_high, rows[t].flip));
      low[t][b] = _mm512_add_epi16(low[t][b], signed_low);
      high[t][b] = _mm512_add_epi16(high[t][b], signed_high);
    }
  };
  const uint8_t* codes = blocks + begin * kBlockRows;
  PairRow rows[kRows];
  int64_t i = 0;
  for (; i + 2 <= dims; i += 2, codes += 2 * kBlockRows) {
    for (int t = 0; t < kRows; ++t) {
      rows[t] = LoadPair(bytes, left[t], begin + i);
      if (kFirst && i + 1 + kRowsAhead < dims) {
        PrefetchRow(bytes + left[t].offsets[begin + i + kRowsAhead]);
        PrefetchRow(bytes + left[t].offsets[begin + i + 1 + kRowsAhead]);
      }
    }
    for (int b = 0; b < kBlocks; ++b) {
      const uint8_t* at = codes + b * block_stride;
      if constexpr (kFirst) {
        _mm_prefetch(at + kAhead, _MM_HINT_T1);
        _mm_prefetch(at + kAhead + kBlockRows, _MM_HINT_T1);
        _mm_prefetch(at + kNear, _MM_HINT_T0);
        _mm_prefetch(at + kNear + kBlockRows, _MM_HINT_T0);
      }
      add_pair(b, _mm512_loadu_si512(at), _mm512_loadu_si512(at + kBlockRows), rows);
    }
  }
  if (i < dims) {
    for (int t = 0; t < kRows; ++t) rows[t] = LoadLast(bytes, left[t], begin + i);
    for (int b = 0; b < kBlocks; ++b) {
      add_pair(b, _mm512_loadu_si512(codes + b * block_stride), _mm512_setzero_si512(), rows);
    }
  }
  for (int t = 0; t < kRows; ++t) {
    for (int b = 0; b < kBlocks; ++b) Widen(low[t][b], high[t][b], begin > 0, acc + (t * num_blocks + b) * kBlockRows);
  }
}

// Adds 256 * sign for every count of 256, which the byte table holds as 0.
void AddWide(const ScTable& table, const ScLeft& left, const uint8_t* block, int32_t* acc) {
  for (int64_t n = 0; n < left.num_wide; ++n) {
    const int64_t d = left.wide[n];
    const int64_t row = table.wide_row[left.offsets[d] / ScTable::kRowBytes];
    const uint8_t* ones = table.wide_bytes + row * ScTable::kRowBytes;
    const __m512i codes = _mm512_loadu_si512(block + d * kBlockRows);
    const __m512i one = _mm512_permutex2var_epi8(_mm512_loadu_si512(ones), codes, _mm512_loadu_si512(ones + 64));
    const __m512i flip = _mm512_set1_epi8(static_cast<char>(left.flips[d]));
    alignas(64) int8_t signs[kBlockRows];
    _mm512_store_si512(signs,
                       _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(one, one), _mm512_xor_si512(Signs(codes), flip)));
    for (int i = 0; i < 4; ++i) {
      const __m512i wide = _mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(signs + 16 * i)));
      int32_t* sums = acc + 16 * i;
      _mm512_storeu_si512(sums, _mm512_add_epi32(_mm512_loadu_si512(sums), _mm512_slli_epi32(wide, 8)));
    }
  }
}

template <int kRows, int kBlocks, bool kFirst>
void TileSegments(const ScTable& table, const ScLeft* left, int64_t dims, const uint8_t* blocks, int64_t block_stride,
                  int64_t num_blocks, int32_t* acc) {
  for (int64_t begin = 0; begin < dims; begin += kSegment) {
    const int64_t segment = dims - begin < kSegment ? dims - begin : kSegment;
    Tile<kRows, kBlocks, kFirst>(table.bytes, left, begin, segment, blocks, block_stride, num_blocks, acc);
  }
  for (int t = 0; t < kRows; ++t) {
    for (int b = 0; b < kBlocks; ++b) {
      AddWide(table, left[t], blocks + b * block_stride, acc + (t * num_blocks + b) * kBlockRows);
    }
  }
}

template <int kBlocks>
void RowTiles(const ScTable& table, const ScLeft* left, int64_t num_left, int64_t dims, const uint8_t* blocks,
              int64_t block_stride, int64_t num_blocks, int32_t* acc) {
  const auto rows = [&]<int kRows, bool kFirst>(int64_t t) {
    TileSegments<kRows, kBlocks, kFirst>(table, left + t, dims, blocks, block_stride, num_blocks,
                                         acc + t * num_blocks * kBlockRows);
  };
  int64_t t = 0;
  for (; t + 2 <= num_left; t += 2) {
    t == 0 ? rows.template operator()<2, true>(t) : rows.template operator()<2, false>(t);
  }
  if (t < num_left) t == 0 ? rows.template operator()<1, true>(t) : rows.template operator()<1, false>(t);
}

}  // namespace

void ScBlockVbmi(const ScTable& table, const ScLeft* left, int64_t num_left, int64_t first_dim, int64_t dims,
                 const uint8_t* blocks, int64_t block_stride, int64_t num_blocks, int32_t* acc) {
  if (table.bytes == nullptr) {  // codes of 256 levels, signs in the table
    ScalarSimd().sc_block(table, left, num_left, first_dim, dims, blocks, block_stride, num_blocks, acc);
    return;
  }
  int64_t b = 0;
  for (; b + 4 <= num_blocks; b += 4) {
    RowTiles<4>(table, left, num_left, dims, blocks + b * block_stride, block_stride, num_blocks, acc + b * kBlockRows);
  }
  for (; b < num_blocks; ++b) {
    RowTiles<1>(table, left, num_left, dims, blocks + b * block_stride, block_stride, num_blocks, acc + b * kBlockRows);
  }
}

}  // namespace stoch::cpu::avx512
