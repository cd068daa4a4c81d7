// SPDX-License-Identifier: Apache-2.0
// The instruction set of dots.h with AVX-512, with VNNI where the file that includes this is built for it.
// File: a type of that file's own (../avx512.h says why).
#pragma once

#include "kernels/cpu/simd/avx512.h"
#include "kernels/cpu/simd/fixed/dots.h"

namespace stoch::cpu::avx512 {

template <typename File>
struct Avx512Fixed {
  using Ints = __m512i;
  using Sums = __m512i;
  static constexpr int kElements = 32;
  static constexpr int64_t kAhead = 3072;
  static constexpr int kTokens = 4;
  static constexpr int kRows = 3;
  static constexpr int kStoredTokens = 4;
  static constexpr int StoredRows(int tokens) { return tokens == 1 ? 3 : 2; }

  __attribute__((always_inline)) static inline Ints Zero() { return _mm512_setzero_si512(); }
  __attribute__((always_inline)) static inline Sums NoSums() { return _mm512_setzero_si512(); }
  __attribute__((always_inline)) static inline Ints Load(const int16_t* from) { return _mm512_loadu_si512(from); }
  __attribute__((always_inline)) static inline void Store(int16_t* to, Ints ints) { _mm512_storeu_si512(to, ints); }
  __attribute__((always_inline)) static inline Ints MultiplyAdd(Ints acc, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
    acc = _mm512_dpwssd_epi32(acc, a, b);
#else
    acc = _mm512_add_epi32(acc, _mm512_madd_epi16(a, b));
#endif
    // In a register here, and in this order: GCC 12 multiplies a whole tile first and keeps its sums in memory.
    asm volatile("" : "+v"(acc));
    return acc;
  }
  __attribute__((always_inline)) static inline Sums Widen(Sums sums, Ints low, Ints high) {
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i digit = _mm512_set1_epi32(FixedLoops::kDigit);
    // A product of the even 32-bit lanes is their widening.
    const __m512i even = _mm512_add_epi64(_mm512_mul_epi32(low, one), _mm512_mul_epi32(high, digit));
    const __m512i odd =
        _mm512_add_epi64(_mm512_srai_epi64(low, 32), _mm512_mul_epi32(_mm512_srli_epi64(high, 32), digit));
    return _mm512_add_epi64(sums, _mm512_add_epi64(even, odd));
  }
  __attribute__((always_inline)) static inline int64_t Total(Sums sums) {
    const __m256i four = _mm256_add_epi64(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64(sums, 1));
    const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
    return _mm_cvtsi128_si64(_mm_add_epi64(two, _mm_unpackhi_epi64(two, two)));
  }

  __attribute__((always_inline)) static inline Ints WidenBytes(const char* from) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  template <DType kType>
  __attribute__((always_inline)) static inline Ints Integers(__m512i numbers, float scale) {
    const __m512 scales = _mm512_set1_ps(scale);
    // Next to 1.5 * 2^23 floats are integers: the sum is rounded to one, whose low bits are the float's.
    const __m512 magic = _mm512_set1_ps(12582912.0f);
    if constexpr (kType == DType::kF16) {
      const __m512 first = _mm512_cvtph_ps(_mm512_castsi512_si256(numbers));
      const __m512 second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(numbers, 1));
      const __m256i low = _mm512_cvtepi32_epi16(_mm512_castps_si512(_mm512_fmadd_ps(first, scales, magic)));
      const __m256i high = _mm512_cvtepi32_epi16(_mm512_castps_si512(_mm512_fmadd_ps(second, scales, magic)));
      return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    } else {
      const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(numbers, 16));
      const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(numbers, _mm512_set1_epi32(-65536)));
      const __m512i low = _mm512_castps_si512(_mm512_fmadd_ps(even, scales, magic));
      const __m512i high = _mm512_castps_si512(_mm512_fmadd_ps(odd, scales, magic));
      return _mm512_mask_blend_epi16(0xaaaaaaaau, low, _mm512_slli_epi32(high, 16));
    }
  }
  template <DType kType>
  __attribute__((always_inline)) static inline Ints Convert(const char* row, int64_t i, float scale) {
    return Integers<kType>(_mm512_loadu_si512(row + i * 2), scale);
  }
  template <DType kType>
  __attribute__((always_inline)) static inline Ints ConvertRest(const char* row, int64_t i, int64_t count,
                                                                float scale) {
    return Integers<kType>(_mm512_maskz_loadu_epi16(~0u >> (kElements - count), row + i * 2), scale);
  }
};

}  // namespace stoch::cpu::avx512
