// SPDX-License-Identifier: Apache-2.0
// Quantizing and dequantizing with AVX-512.
#include "kernels/cpu/simd/avx512.h"

namespace stoch::cpu::avx512 {

void ScDequantize(const int32_t* acc, float gain, float scale_a, const float* scale_b, float* y) {
  const __m512 gains = _mm512_set1_ps(gain);
  const __m512 scale = _mm512_set1_ps(scale_a);
  for (int r = 0; r < kBlockRows; r += 16) {
    const __m512 sum = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(acc + r)), gains);
    const __m512 product = _mm512_mul_ps(sum, _mm512_mul_ps(scale, _mm512_loadu_ps(scale_b + r)));
    _mm512_storeu_ps(y + r, _mm512_add_ps(_mm512_loadu_ps(y + r), product));
  }
}

uint32_t MaxAbsBits(const float* x, int64_t n) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i max = _mm512_setzero_si512();
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = LaneMask(n - i);
    max = _mm512_max_epu32(max, _mm512_and_si512(_mm512_maskz_loadu_epi32(mask, x + i), magnitude));
  }
  return _mm512_reduce_max_epu32(max);
}

void Quantize(const float* x, int64_t n, float scale, int q_max, uint8_t* codes) {
  const __m512 scales = _mm512_set1_ps(scale);
  const __m512 limit = _mm512_set1_ps(static_cast<float>(q_max));
  const __m512 negative_limit = _mm512_set1_ps(-static_cast<float>(q_max));
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = LaneMask(n - i);
    const __m512 ratio = _mm512_div_ps(_mm512_maskz_loadu_ps(mask, x + i), scales);
    const __m512 level = _mm512_roundscale_ps(ratio, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512i q = _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(level, limit), negative_limit));
    const __m512i sign = _mm512_and_si512(_mm512_srai_epi32(q, 31), _mm512_set1_epi32(0x80));
    _mm_mask_storeu_epi8(codes + i, mask, _mm512_cvtepi32_epi8(_mm512_or_si512(_mm512_abs_epi32(q), sign)));
  }
}

}  // namespace stoch::cpu::avx512
