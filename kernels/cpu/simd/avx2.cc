// SPDX-License-Identifier: Apache-2.0
// Row operations with AVX2, and the variant's table.
#include "kernels/cpu/simd/avx2.h"

#include <cstring>

#include "kernels/math/elementary.h"
#include "kernels/math/half.h"
#include "kernels/math/random.h"
#include "kernels/math/reduce.h"

namespace stoch::cpu {
namespace avx2 {
namespace {

constexpr int kRowRegisters = kRowLanes / 8;

// FoldLanes over registers, then within the last one.
__attribute__((always_inline)) inline float FoldRow(__m256* lanes) {
  for (int s = kRowRegisters / 2; s > 0; s /= 2) {
    for (int j = 0; j < s; ++j) lanes[j] = _mm256_add_ps(lanes[j], lanes[j + s]);
  }
  float last[8];
  _mm256_storeu_ps(last, lanes[0]);
  return FoldLanes<8>(last);
}

// Exp of kernels/math/elementary.h, step by step.
__attribute__((always_inline)) inline __m256 Exp8(__m256 x) {
  const __m256 n =
      _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693359375f), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.9875691500e-4f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
  p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
  p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
  const __m256i number = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_ORD_Q));
  const __m256i e = _mm256_and_si256(_mm256_cvtps_epi32(n), number);
  // e / 2 rounds towards zero.
  const __m256i half = _mm256_srai_epi32(_mm256_add_epi32(e, _mm256_srli_epi32(e, 31)), 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(e, half), bias), 23);
  __m256 y = _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
  y = _mm256_blendv_ps(y, _mm256_setzero_ps(), _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ));
  return _mm256_blendv_ps(y, _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000)),
                          _mm256_cmp_ps(x, _mm256_set1_ps(88.7f), _CMP_GT_OQ));
}

float SumSquares(const float* x, int64_t n) {
  float lanes[kRowLanes] = {};
  int64_t i = 0;
  for (; i + kRowLanes <= n; i += kRowLanes) {
    for (int j = 0; j < kRowLanes; j += 8) {
      const __m256 values = _mm256_loadu_ps(x + i + j);
      _mm256_storeu_ps(lanes + j, _mm256_fmadd_ps(values, values, _mm256_loadu_ps(lanes + j)));
    }
  }
  for (int j = 0; i < n; ++i, ++j) lanes[j] = Fma(x[i], x[i], lanes[j]);
  return FoldLanes<kRowLanes>(lanes);
}

float ExpSum(const float* x, int64_t n, float shift, float* e) {
  const __m256 shifts = _mm256_set1_ps(shift);
  __m256 lanes[kRowRegisters];
  for (int j = 0; j < kRowRegisters; ++j) lanes[j] = _mm256_setzero_ps();
  for (int64_t i = 0; i < n; i += 8) {
    __m256& lane = lanes[i / 8 % kRowRegisters];
    const int64_t count = n - i < 8 ? n - i : 8;
    const __m256i mask =
        _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256 value = Exp8(_mm256_sub_ps(_mm256_maskload_ps(x + i, mask), shifts));
    if (e != nullptr) _mm256_maskstore_ps(e + i, mask, value);
    lane = _mm256_add_ps(lane, _mm256_and_ps(value, _mm256_castsi256_ps(mask)));
  }
  return FoldRow(lanes);
}

// DivergenceTerm of kernels/math/divergence.h, step by step.
__attribute__((always_inline)) inline __m256d DivergenceTerm4(__m256d base, __m256d own) {
  const __m256d n = _mm256_round_pd(_mm256_mul_pd(base, _mm256_set1_pd(1.4426950408889634)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256d r = _mm256_fmadd_pd(n, _mm256_set1_pd(-6.93147180369123816490e-01), base);
  r = _mm256_fmadd_pd(n, _mm256_set1_pd(-1.90821492927058770002e-10), r);
  const __m256d one = _mm256_set1_pd(1.0);
  __m256d p = one;
  for (int i = 16; i >= 1; --i) p = _mm256_fmadd_pd(p, _mm256_div_pd(r, _mm256_set1_pd(i)), one);
  const __m256i e = _mm256_add_epi64(_mm256_cvtepi32_epi64(_mm256_cvtpd_epi32(n)), _mm256_set1_epi64x(1023));
  p = _mm256_mul_pd(p, _mm256_castsi256_pd(_mm256_slli_epi64(e, 52)));
  p = _mm256_andnot_pd(_mm256_cmp_pd(base, _mm256_set1_pd(-700.0), _CMP_LT_OQ), p);
  return _mm256_mul_pd(p, _mm256_sub_pd(base, own));
}

// LogSum::LogProb.
__attribute__((always_inline)) inline __m256d LogProb4(const float* x, const LogSum& of) {
  return _mm256_sub_pd(_mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x)), _mm256_set1_pd(of.max)),
                       _mm256_set1_pd(of.log_sum));
}

double Divergence(const float* base, const LogSum& base_of, const float* x, const LogSum& of, int64_t n) {
  alignas(32) double lanes[kRowLanes] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    double* lane = lanes + i % kRowLanes;
    const __m256d term = DivergenceTerm4(LogProb4(base + i, base_of), LogProb4(x + i, of));
    _mm256_store_pd(lane, _mm256_add_pd(_mm256_load_pd(lane), term));
  }
  for (; i < n; ++i) {
    double& lane = lanes[i % kRowLanes];
    lane = lane + DivergenceTerm(base_of.LogProb(base[i]), of.LogProb(x[i]));
  }
  return FoldLanes<kRowLanes>(lanes);
}

void SiluMul(const float* x, const float* x2, int64_t n, float* out) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 values = _mm256_loadu_ps(x + i);
    const __m256 denominator = _mm256_add_ps(_mm256_set1_ps(1.0f), Exp8(_mm256_xor_ps(values, sign)));
    _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_div_ps(values, denominator), _mm256_loadu_ps(x2 + i)));
  }
  for (; i < n; ++i) out[i] = Silu(x[i]) * x2[i];
}

void Load(const void* source, DType dtype, int64_t n, float* out) {
  const char* bytes = static_cast<const char*>(source);
  if (dtype == DType::kF32) {
    memcpy(out, bytes, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i * 2));
    const __m256 values = dtype == DType::kF16
                              ? _mm256_cvtph_ps(halves)
                              : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    _mm256_storeu_ps(out + i, values);
  }
  for (; i < n; ++i) {
    uint16_t half;
    memcpy(&half, bytes + i * 2, sizeof(half));
    out[i] = dtype == DType::kF16 ? F16ToFloat(half) : Bf16ToFloat(half);
  }
}

// AVX2 has no 64-bit multiplication, so this is the scalar code.
void Random(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, float stddev, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = RandomWeight(seed, stream, first + static_cast<uint64_t>(i), stddev);
}

}  // namespace
}  // namespace avx2

const Simd& Avx2Simd() {
  static constexpr Simd kSimd = {"avx2",           avx2::ScBlock,  avx2::SumByGates, avx2::ScDequantize,
                                 avx2::MaxAbsBits, avx2::Quantize, avx2::DotRows,    avx2::WeightedSum,
                                 avx2::SumSquares, avx2::ExpSum,   avx2::Divergence, avx2::SiluMul,
                                 avx2::Load,       avx2::Random,   &avx2::kFixed,    &avx2::kPanel};
  return kSimd;
}

}  // namespace stoch::cpu
