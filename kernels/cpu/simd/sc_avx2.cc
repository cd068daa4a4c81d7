// SPDX-License-Identifier: Apache-2.0
// SC products with AVX2: by two look-ups where the operator has such a table, else by eight byte shuffles of 16 table
// entries each and a tree of blends by code bits 4, 5 and 6.
#include <cstring>

#include "kernels/cpu/simd/avx2.h"
#include "kernels/cpu/simd/byte_table.h"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"

namespace stoch::cpu::avx2 {
namespace {

constexpr int kHalf = 32;  // rows of one register

__attribute__((always_inline)) inline __m256i LoadBytes(const uint8_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// The entries of a 128-byte row for 32 codes; bit 7 of a code is ignored.
__attribute__((always_inline)) inline __m256i Lookup(const uint8_t* row, __m256i codes) {
  const __m256i index = _mm256_and_si256(codes, _mm256_set1_epi8(0x0f));
  const auto piece = [&](int i) __attribute__((always_inline)) {
    const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 16 * i));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), index);
  };
  // A blend looks at bit 7 of each byte; what crosses into a byte from its neighbour stays below.
  const __m256i bit4 = _mm256_slli_epi16(codes, 3);
  const __m256i bit5 = _mm256_slli_epi16(codes, 2);
  const __m256i bit6 = _mm256_slli_epi16(codes, 1);
  const __m256i low = _mm256_blendv_epi8(_mm256_blendv_epi8(piece(0), piece(1), bit4),
                                         _mm256_blendv_epi8(piece(2), piece(3), bit4), bit5);
  const __m256i high = _mm256_blendv_epi8(_mm256_blendv_epi8(piece(4), piece(5), bit4),
                                          _mm256_blendv_epi8(piece(6), piece(7), bit4), bit5);
  return _mm256_blendv_epi8(low, high, bit6);
}

// +1, -1, or 0 for code 0, whose count is 0.
__attribute__((always_inline)) inline __m256i Signs(__m256i codes) {
  return _mm256_sign_epi8(_mm256_set1_epi8(1), codes);
}

__attribute__((always_inline)) inline void AddSums(__m256i sums, bool add, int32_t* acc) {
  __m256i* at = reinterpret_cast<__m256i*>(acc);
  _mm256_storeu_si256(at, add ? _mm256_add_epi32(sums, _mm256_loadu_si256(at)) : sums);
}

// 16-bit sums in unpack order (rows 0..7, 16..23 and 8..15, 24..31) to 32-bit sums in row order.
__attribute__((always_inline)) inline void Widen(__m256i low, __m256i high, bool add, int32_t* acc) {
  const __m256i first = _mm256_permute2x128_si256(low, high, 0x20);
  const __m256i second = _mm256_permute2x128_si256(low, high, 0x31);
  AddSums(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(first)), add, acc);
  AddSums(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(first, 1)), add, acc + 8);
  AddSums(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(second)), add, acc + 16);
  AddSums(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(second, 1)), add, acc + 24);
}

// The instruction set of two_lookups.h.
struct Avx2 {
  using Bytes = __m256i;
  static constexpr int kRows = 32;
  struct Signs {  // +1 or -1, bytes of both dimensions in turns: those of the sums of `low` and of `high`
    Bytes first, second;
  };
  struct Sums {  // 16-bit sums, in the order of the unpack instructions
    Bytes low, high;
  };

  __attribute__((always_inline)) static inline Bytes Load(const uint8_t* at) { return LoadBytes(at); }
  __attribute__((always_inline)) static inline void Store(uint8_t* at, Bytes v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), v);
  }
  __attribute__((always_inline)) static inline Bytes Zero() { return _mm256_setzero_si256(); }
  __attribute__((always_inline)) static inline Bytes Table(const uint8_t* at) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  __attribute__((always_inline)) static inline Bytes Look(Bytes table, Bytes index) {
    return _mm256_shuffle_epi8(table, index);
  }
  __attribute__((always_inline)) static inline Bytes And(Bytes a, Bytes b) { return _mm256_and_si256(a, b); }
  __attribute__((always_inline)) static inline Bytes Add(Bytes a, Bytes b) { return _mm256_add_epi8(a, b); }
  __attribute__((always_inline)) static inline Bytes Low(Bytes v) { return And(v, _mm256_set1_epi8(0x0f)); }
  __attribute__((always_inline)) static inline Bytes Nibble(Bytes v) { return Low(_mm256_srli_epi16(v, 4)); }
  __attribute__((always_inline)) static inline Bytes Boundary(Bytes codes) {
    const Bytes level = And(codes, _mm256_set1_epi8(0x7f));
    return _mm256_sub_epi8(level, _mm256_cmpgt_epi8(level, _mm256_set1_epi8(63)));
  }
  __attribute__((always_inline)) static inline Bytes Average(Bytes a, Bytes b) {
    return _mm256_xor_si256(_mm256_avg_epu8(a, b), _mm256_set1_epi8(-1));
  }
  __attribute__((always_inline)) static inline Bytes High(Bytes codes) { return Low(_mm256_srli_epi16(codes, 3)); }
  __attribute__((always_inline)) static inline Bytes Mask(Bytes codes) {
    alignas(16) static constexpr uint8_t kMasks[16] = {0, 1, 3, 7, 15, 31, 63, 127, 0, 1, 3, 7, 15, 31, 63, 127};
    return Look(Table(kMasks), Low(codes));
  }
  __attribute__((always_inline)) static inline Bytes Ones(Bytes v) {
    alignas(16) static constexpr uint8_t kOnes[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    // An index whose bit 7 is not set counts by its low nibble.
    return Add(Look(Table(kOnes), v), Look(Table(kOnes), Low(_mm256_srli_epi16(v, 4))));
  }
  __attribute__((always_inline)) static inline Signs MakeSigns(Bytes codes0, Bytes codes1, uint8_t flip0,
                                                               uint8_t flip1) {
    const Bytes flips = _mm256_set1_epi16(static_cast<int16_t>(flip0 | flip1 << 8));
    const Bytes low = _mm256_unpacklo_epi8(codes0, codes1);
    const Bytes high = _mm256_unpackhi_epi8(codes0, codes1);
    const Bytes ones = _mm256_xor_si256(_mm256_set1_epi8(1), flips);
    return {_mm256_sign_epi8(ones, low), _mm256_sign_epi8(ones, high)};
  }
  __attribute__((always_inline)) static inline void AddPair(Sums& sums, Bytes counts0, Bytes counts1,
                                                            const Signs& signs) {
    const Bytes low = _mm256_unpacklo_epi8(counts0, counts1);
    const Bytes high = _mm256_unpackhi_epi8(counts0, counts1);
    sums.low = _mm256_add_epi16(sums.low, _mm256_maddubs_epi16(low, signs.first));
    sums.high = _mm256_add_epi16(sums.high, _mm256_maddubs_epi16(high, signs.second));
  }
  __attribute__((always_inline)) static inline void Widen(const Sums& sums, bool add, int32_t* acc) {
    avx2::Widen(sums.low, sums.high, add, acc);
  }
};

// The byte table of byte_table.h.
struct Avx2Bytes {
  // One row of a against one block, dimensions [begin, begin + dims), dims <= kSegment.
  static void Segment(const uint8_t* bytes, const ScLeft& left, int64_t begin, int64_t dims, const uint8_t* block,
                      int32_t* acc) {
    __m256i low[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    __m256i high[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    const auto add_pair = [&](int h, const uint8_t* row0, const uint8_t* row1, __m256i code0, __m256i code1,
                              __m256i flip) __attribute__((always_inline)) {
      const __m256i count0 = Lookup(row0, code0);
      const __m256i count1 = Lookup(row1, code1);
      const __m256i sign_low = _mm256_xor_si256(Signs(_mm256_unpacklo_epi8(code0, code1)), flip);
      const __m256i sign_high = _mm256_xor_si256(Signs(_mm256_unpackhi_epi8(code0, code1)), flip);
      low[h] = _mm256_add_epi16(low[h], _mm256_maddubs_epi16(_mm256_unpacklo_epi8(count0, count1), sign_low));
      high[h] = _mm256_add_epi16(high[h], _mm256_maddubs_epi16(_mm256_unpackhi_epi8(count0, count1), sign_high));
    };
    int64_t i = begin;
    for (; i + 2 <= begin + dims; i += 2) {
      int16_t flips;
      memcpy(&flips, left.flips + i, sizeof(flips));
      const uint8_t* codes = block + i * kBlockRows;
      for (int h = 0; h < 2; ++h) {
        add_pair(h, bytes + left.offsets[i], bytes + left.offsets[i + 1], LoadBytes(codes + h * kHalf),
                 LoadBytes(codes + kBlockRows + h * kHalf), _mm256_set1_epi16(flips));
      }
    }
    if (i < begin + dims) {  // an odd count: the last dimension is paired with codes 0
      const uint8_t* row = bytes + left.offsets[i];
      for (int h = 0; h < 2; ++h) {
        add_pair(h, row, row, LoadBytes(block + i * kBlockRows + h * kHalf), _mm256_setzero_si256(),
                 _mm256_set1_epi16(left.flips[i]));
      }
    }
    for (int h = 0; h < 2; ++h) Widen(low[h], high[h], begin > 0, acc + h * kHalf);
  }
};

}  // namespace

void ScBlock(const ScTable& table, const ScLeft* left, int64_t num_left, int64_t first_dim, int64_t dims,
             const uint8_t* blocks, int64_t block_stride, int64_t num_blocks, int32_t* acc) {
  ByteTable<Avx2, Avx2Bytes>::Block(table, left, num_left, first_dim, dims, blocks, block_stride, num_blocks, acc);
}

void ScDequantize(const int32_t* acc, float gain, float scale_a, const float* scale_b, float* y) {
  const __m256 gains = _mm256_set1_ps(gain);
  const __m256 scale = _mm256_set1_ps(scale_a);
  for (int r = 0; r < kBlockRows; r += 8) {
    const __m256i sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(acc + r));
    const __m256 product = _mm256_mul_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sums), gains),
                                         _mm256_mul_ps(scale, _mm256_loadu_ps(scale_b + r)));
    _mm256_storeu_ps(y + r, _mm256_add_ps(_mm256_loadu_ps(y + r), product));
  }
}

uint32_t MaxAbsBits(const float* x, int64_t n) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i lanes = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    lanes = _mm256_max_epu32(lanes, _mm256_and_si256(bits, magnitude));
  }
  uint32_t stored[8];
  memcpy(stored, &lanes, sizeof(stored));
  uint32_t max = 0;
  for (const uint32_t lane : stored) max = lane > max ? lane : max;
  for (; i < n; ++i) {
    const uint32_t bits = FloatToBits(x[i]) & 0x7fffffffu;
    max = bits > max ? bits : max;
  }
  return max;
}

void Quantize(const float* x, int64_t n, float scale, int q_max, uint8_t* codes) {
  const __m256 scales = _mm256_set1_ps(scale);
  const __m256 limit = _mm256_set1_ps(static_cast<float>(q_max));
  const __m256 negative_limit = _mm256_set1_ps(-static_cast<float>(q_max));
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 ratio = _mm256_div_ps(_mm256_loadu_ps(x + i), scales);
    const __m256 level = _mm256_round_ps(ratio, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i q = _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(level, limit), negative_limit));
    const __m256i sign = _mm256_and_si256(_mm256_srai_epi32(q, 31), _mm256_set1_epi32(0x80));
    const __m256i code = _mm256_or_si256(_mm256_abs_epi32(q), sign);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + i), _mm_packus_epi16(words, words));
  }
  for (; i < n; ++i) codes[i] = SignMagnitude(BipolarLevel(x[i], scale, q_max));
}

}  // namespace stoch::cpu::avx2
