// SPDX-License-Identifier: Apache-2.0
// Products of integers with AVX2.
#include "kernels/cpu/simd/avx2.h"

#include <cstring>

#include "kernels/cpu/simd/fixed/dots.h"

namespace stoch::cpu::avx2 {
namespace {

// The instruction set of dots.h.
struct Avx2Fixed {
  using Ints = __m256i;
  using Sums = __m256i;
  static constexpr int kElements = 16;
  static constexpr int64_t kAhead = 12288;
  static constexpr int kTokens = 3;
  static constexpr int kRows = 2;
  static constexpr int kStoredTokens = 2;
  // One row of x: rows of w one by one, which is how they lie in memory (dot_avx2.cc).
  static constexpr int StoredRows(int) { return 1; }

  __attribute__((always_inline)) static inline Ints Zero() { return _mm256_setzero_si256(); }
  __attribute__((always_inline)) static inline Sums NoSums() { return _mm256_setzero_si256(); }
  __attribute__((always_inline)) static inline Ints Load(const int16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  __attribute__((always_inline)) static inline void Store(int16_t* to, Ints ints) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), ints);
  }
  __attribute__((always_inline)) static inline Ints MultiplyAdd(Ints acc, Ints a, Ints b) {
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
    // In a register here, and in this order: GCC 12 multiplies a whole tile first and keeps its sums in memory.
    asm volatile("" : "+x"(acc));
    return acc;
  }
  __attribute__((always_inline)) static inline Sums Widen(Sums sums, Ints low, Ints high) {
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i digit = _mm256_set1_epi32(FixedLoops::kDigit);
    // A product of the even 32-bit lanes is their widening.
    const __m256i even = _mm256_add_epi64(_mm256_mul_epi32(low, one), _mm256_mul_epi32(high, digit));
    const __m256i odd = _mm256_add_epi64(_mm256_mul_epi32(_mm256_srli_epi64(low, 32), one),
                                         _mm256_mul_epi32(_mm256_srli_epi64(high, 32), digit));
    return _mm256_add_epi64(sums, _mm256_add_epi64(even, odd));
  }
  __attribute__((always_inline)) static inline int64_t Total(Sums sums) {
    const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    return _mm_cvtsi128_si64(_mm_add_epi64(two, _mm_unpackhi_epi64(two, two)));
  }

  __attribute__((always_inline)) static inline Ints WidenBytes(const char* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  template <DType kType>
  __attribute__((always_inline)) static inline Ints Convert(const char* row, int64_t i, float scale) {
    const __m256 scales = _mm256_set1_ps(scale);
    const char* from = row + i * 2;
    if constexpr (kType == DType::kF16) {
      const __m128i* halves = reinterpret_cast<const __m128i*>(from);
      const __m256 first = _mm256_mul_ps(_mm256_cvtph_ps(_mm_loadu_si128(halves)), scales);
      const __m256 second = _mm256_mul_ps(_mm256_cvtph_ps(_mm_loadu_si128(halves + 1)), scales);
      const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(first), _mm256_cvtps_epi32(second));
      return _mm256_permute4x64_epi64(packed, 0xd8);
    } else {
      const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
      // Next to 1.5 * 2^23 floats are integers: the sum is rounded to one, whose low bits are the float's.
      const __m256 magic = _mm256_set1_ps(12582912.0f);
      const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(numbers, 16));
      const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(numbers, _mm256_set1_epi32(-65536)));
      const __m256i low = _mm256_castps_si256(_mm256_fmadd_ps(even, scales, magic));
      const __m256i high = _mm256_castps_si256(_mm256_fmadd_ps(odd, scales, magic));
      return _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa);
    }
  }
  template <DType kType>
  __attribute__((always_inline)) static inline Ints ConvertRest(const char* row, int64_t i, int64_t count,
                                                                float scale) {
    char numbers[kElements * 2] = {};
    memcpy(numbers, row + i * 2, static_cast<size_t>(count) * 2);
    return Convert<kType>(numbers, 0, scale);
  }
};

using Loops = FixedBy<Avx2Fixed>;

}  // namespace

constinit const FixedLoops kFixed = {Loops::Convert, Loops::Dots, Loops::Stored, 3};

}  // namespace stoch::cpu::avx2
