// SPDX-License-Identifier: Apache-2.0
// Row operations with AVX-512, and the tables of its two variants.
#include "kernels/cpu/simd/avx512.h"

#include "kernels/math/random.h"
#include "kernels/math/reduce.h"

namespace stoch::cpu {
namespace avx512 {
namespace {

constexpr int kRowRegisters = kRowLanes / 16;

// FoldLanes over registers, then within the last one.
__attribute__((always_inline)) inline float FoldRow(__m512* lanes) {
  for (int s = kRowRegisters / 2; s > 0; s /= 2) {
    for (int j = 0; j < s; ++j) lanes[j] = _mm512_add_ps(lanes[j], lanes[j + s]);
  }
  alignas(64) float last[16];
  _mm512_store_ps(last, lanes[0]);
  return FoldLanes<16>(last);
}

// Exp of kernels/math/elementary.h, step by step.
__attribute__((always_inline)) inline __m512 Exp16(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
  p = _mm512_add_ps(p, _mm512_set1_ps(1.0f));
  const __mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
  const __m512i e = _mm512_maskz_cvtps_epi32(number, n);
  // e / 2 rounds towards zero.
  const __m512i half = _mm512_srai_epi32(_mm512_add_epi32(e, _mm512_srli_epi32(e, 31)), 1);
  const __m512i bias = _mm512_set1_epi32(127);
  const __m512i first = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
  const __m512i second = _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(e, half), bias), 23);
  __m512 y = _mm512_mul_ps(_mm512_mul_ps(p, _mm512_castsi512_ps(first)), _mm512_castsi512_ps(second));
  y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ), _mm512_setzero_ps());
  return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, _mm512_set1_ps(88.7f), _CMP_GT_OQ),
                            _mm512_castsi512_ps(_mm512_set1_epi32(0x7f800000)));
}

float SumSquares(const float* x, int64_t n) {
  __m512 lanes[kRowRegisters];
  for (int j = 0; j < kRowRegisters; ++j) lanes[j] = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += kRowLanes) {
    for (int j = 0; j < kRowRegisters; ++j) {
      const int64_t rest = n - i - 16 * j;
      if (rest <= 0) break;
      const __m512 values = _mm512_maskz_loadu_ps(LaneMask(rest), x + i + 16 * j);
      lanes[j] = _mm512_fmadd_ps(values, values, lanes[j]);
    }
  }
  return FoldRow(lanes);
}

float ExpSum(const float* x, int64_t n, float shift, float* e) {
  const __m512 shifts = _mm512_set1_ps(shift);
  __m512 lanes[kRowRegisters];
  for (int j = 0; j < kRowRegisters; ++j) lanes[j] = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += kRowLanes) {
    for (int j = 0; j < kRowRegisters; ++j) {
      const int64_t at = i + 16 * j;
      if (at >= n) break;
      const __mmask16 mask = LaneMask(n - at);
      const __m512 value = Exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + at), shifts));
      if (e != nullptr) _mm512_mask_storeu_ps(e + at, mask, value);
      lanes[j] = _mm512_mask_add_ps(lanes[j], mask, lanes[j], value);
    }
  }
  return FoldRow(lanes);
}

// DivergenceTerm of kernels/math/divergence.h, step by step.
__attribute__((always_inline)) inline __m512d DivergenceTerm8(__m512d base, __m512d own) {
  const __m512d n = _mm512_roundscale_pd(_mm512_mul_pd(base, _mm512_set1_pd(1.4426950408889634)),
                                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512d r = _mm512_fmadd_pd(n, _mm512_set1_pd(-6.93147180369123816490e-01), base);
  r = _mm512_fmadd_pd(n, _mm512_set1_pd(-1.90821492927058770002e-10), r);
  const __m512d one = _mm512_set1_pd(1.0);
  __m512d p = one;
  for (int i = 16; i >= 1; --i) p = _mm512_fmadd_pd(p, _mm512_div_pd(r, _mm512_set1_pd(i)), one);
  const __m512i e = _mm512_add_epi64(_mm512_cvtpd_epi64(n), _mm512_set1_epi64(1023));
  p = _mm512_mul_pd(p, _mm512_castsi512_pd(_mm512_slli_epi64(e, 52)));
  p = _mm512_mask_mov_pd(p, _mm512_cmp_pd_mask(base, _mm512_set1_pd(-700.0), _CMP_LT_OQ), _mm512_setzero_pd());
  return _mm512_mul_pd(p, _mm512_sub_pd(base, own));
}

// LogSum::LogProb.
__attribute__((always_inline)) inline __m512d LogProb8(__mmask8 mask, const float* x, const LogSum& of) {
  const __m512d values = _mm512_cvtps_pd(_mm256_maskz_loadu_ps(mask, x));
  return _mm512_sub_pd(_mm512_sub_pd(values, _mm512_set1_pd(of.max)), _mm512_set1_pd(of.log_sum));
}

double Divergence(const float* base, const LogSum& base_of, const float* x, const LogSum& of, int64_t n) {
  alignas(64) double lanes[kRowLanes] = {};
  for (int64_t i = 0; i < n; i += 8) {
    const auto mask = static_cast<__mmask8>(LaneMask(n - i));
    double* lane = lanes + i % kRowLanes;
    const __m512d term = DivergenceTerm8(LogProb8(mask, base + i, base_of), LogProb8(mask, x + i, of));
    const __m512d sum = _mm512_load_pd(lane);
    _mm512_store_pd(lane, _mm512_mask_add_pd(sum, mask, sum, term));
  }
  return FoldLanes<kRowLanes>(lanes);
}

void SiluMul(const float* x, const float* x2, int64_t n, float* out) {
  const __m512 sign = _mm512_castsi512_ps(_mm512_set1_epi32(INT32_MIN));
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = LaneMask(n - i);
    const __m512 values = _mm512_maskz_loadu_ps(mask, x + i);
    const __m512 denominator = _mm512_add_ps(_mm512_set1_ps(1.0f), Exp16(_mm512_xor_ps(values, sign)));
    const __m512 silu = _mm512_div_ps(values, denominator);
    _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(silu, _mm512_maskz_loadu_ps(mask, x2 + i)));
  }
}

void Load(const void* source, DType dtype, int64_t n, float* out) {
  const char* bytes = static_cast<const char*>(source);
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = LaneMask(n - i);
    __m512 values;
    if (dtype == DType::kF32) {
      values = _mm512_maskz_loadu_ps(mask, bytes + i * 4);
    } else {
      const __m256i halves = _mm256_maskz_loadu_epi16(mask, bytes + i * 2);
      values = dtype == DType::kF16 ? _mm512_cvtph_ps(halves)
                                    : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
    _mm512_mask_storeu_ps(out + i, mask, values);
  }
}

// Mix64 of kernels/math/random.h.
__attribute__((always_inline)) inline __m512i Mix(__m512i x) {
  x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 30)),
                         _mm512_set1_epi64(static_cast<int64_t>(0xbf58476d1ce4e5b9ull)));
  x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 27)),
                         _mm512_set1_epi64(static_cast<int64_t>(0x94d049bb133111ebull)));
  return _mm512_xor_si512(x, _mm512_srli_epi64(x, 31));
}

void Random(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, float stddev, float* out) {
  constexpr uint64_t kWeyl = 0x9e3779b97f4a7c15ull;
  const __m512i base = _mm512_set1_epi64(static_cast<int64_t>(Mix64(seed * kWeyl + stream)));
  const __m256 scale = _mm256_set1_ps(stddev / 37837.227f);
  const __m512i low = _mm512_set1_epi64(0xffff);
  for (int64_t i = 0; i < n; i += 8) {
    const __m512i position =
        _mm512_add_epi64(_mm512_set1_epi64(static_cast<int64_t>(first + static_cast<uint64_t>(i) + 1)),
                         _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
    const __m512i h =
        Mix(_mm512_add_epi64(base, _mm512_mullo_epi64(position, _mm512_set1_epi64(static_cast<int64_t>(kWeyl)))));
    __m512i sum = _mm512_add_epi64(_mm512_and_si512(h, low), _mm512_and_si512(_mm512_srli_epi64(h, 16), low));
    sum = _mm512_add_epi64(sum, _mm512_and_si512(_mm512_srli_epi64(h, 32), low));
    sum = _mm512_add_epi64(sum, _mm512_srli_epi64(h, 48));
    const __m256i centred = _mm256_sub_epi32(_mm512_cvtepi64_epi32(sum), _mm256_set1_epi32(131070));
    const __m256 values = _mm256_mul_ps(_mm256_cvtepi32_ps(centred), scale);
    const __m128i halves = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const int64_t rest = n - i;
    const __mmask8 mask = rest >= 8 ? static_cast<__mmask8>(0xff) : static_cast<__mmask8>((1u << rest) - 1u);
    _mm256_mask_storeu_ps(out + i, mask, _mm256_cvtph_ps(halves));
  }
}

}  // namespace
}  // namespace avx512

const Simd& Avx512BwSimd() {
  static constexpr Simd kSimd = {"avx512bw",         avx512::ScBlockBw, avx512::SumByGates, avx512::ScDequantize,
                                 avx512::MaxAbsBits, avx512::Quantize,  avx512::DotRows,    avx512::WeightedSum,
                                 avx512::SumSquares, avx512::ExpSum,    avx512::Divergence, avx512::SiluMul,
                                 avx512::Load,       avx512::Random,    &avx512::kFixed,    &avx512::kPanelBw};
  return kSimd;
}

const Simd& Avx512VbmiSimd() {
  static constexpr Simd kSimd = {"avx512vbmi",       avx512::ScBlockVbmi, avx512::SumByGates,  avx512::ScDequantize,
                                 avx512::MaxAbsBits, avx512::Quantize,    avx512::DotRows,     avx512::WeightedSum,
                                 avx512::SumSquares, avx512::ExpSum,      avx512::Divergence,  avx512::SiluMul,
                                 avx512::Load,       avx512::Random,      &avx512::kFixedVnni, &avx512::kPanelVbmi};
  return kSimd;
}

}  // namespace stoch::cpu
