// SPDX-License-Identifier: Apache-2.0
// Exact dot products with AVX2: the 16 lanes of the contract are two registers.
#include <cstring>

#include "kernels/cpu/simd/avx2.h"
#include "kernels/cpu/simd/dot_rows.h"
#include "kernels/math/reduce.h"

namespace stoch::cpu::avx2 {
namespace {

static_assert(kDotLanes == 16);

// FoldLanes of lanes 0..7 and 8..15.
__attribute__((always_inline)) inline float Fold(__m256 low, __m256 high) {
  const __m256 by8 = _mm256_add_ps(low, high);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return PlusZero(_mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2))));
}

template <DType kType>
__attribute__((always_inline)) inline __m256 Load8(const char* row, int64_t i) {
  if constexpr (kType == DType::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(row + i * 4));
  } else {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i * 2));
    if constexpr (kType == DType::kF16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
}

// How far ahead of their use weights are prefetched into L2, in bytes (see two_lookups.h).
constexpr int64_t kAhead = 8192;

// The instruction set of dot_rows.h.
struct Avx2Dot {
  static constexpr int kTokens = 2;
  // One row of x: rows of w one by one, which is how they lie in memory. On a Zen 4 a thread reads 28 GB/s so, 18 by four
  // rows at a time; the two chains of additions of a row allow 29.
  static constexpr int RowsOf(int tokens) { return tokens == 1 ? 1 : 3; }

  // kX rows of x times kW rows of w.
  template <DType kType, int kX, int kW, bool kFirst>
  __attribute__((always_inline)) static inline void Tile(const float* x, int64_t x_stride, const char* w,
                                                         int64_t w_bytes, int64_t cols, float* out, int64_t out_stride,
                                                         bool add) {
    constexpr int kSize = kType == DType::kF32 ? 4 : 2;
    __m256 acc[kX][kW][2];
    for (int t = 0; t < kX; ++t) {
      for (int r = 0; r < kW; ++r) acc[t][r][0] = acc[t][r][1] = _mm256_setzero_ps();
    }
    int64_t i = 0;
    for (; i + kDotLanes <= cols; i += kDotLanes) {
      if constexpr (kX == 1) _mm_prefetch(w + i * kSize + kAhead, _MM_HINT_T1);
      for (int h = 0; h < 2; ++h) {
        __m256 values[kX];
        for (int t = 0; t < kX; ++t) values[t] = _mm256_loadu_ps(x + t * x_stride + i + 8 * h);
        for (int r = 0; r < kW; ++r) {
          const __m256 weights = Load8<kType>(w + r * w_bytes, i + 8 * h);
          for (int t = 0; t < kX; ++t) acc[t][r][h] = _mm256_fmadd_ps(values[t], weights, acc[t][r][h]);
        }
      }
    }
    if (i < cols) {  // padded with zeros, see reduce.h
      for (int t = 0; t < kX; ++t) {
        float values[kDotLanes] = {};
        memcpy(values, x + t * x_stride + i, static_cast<size_t>(cols - i) * sizeof(float));
        for (int r = 0; r < kW; ++r) {
          char weights[kDotLanes * kSize] = {};
          memcpy(weights, w + r * w_bytes + i * kSize, static_cast<size_t>(cols - i) * kSize);
          for (int h = 0; h < 2; ++h) {
            acc[t][r][h] = _mm256_fmadd_ps(_mm256_loadu_ps(values + 8 * h), Load8<kType>(weights, 8 * h), acc[t][r][h]);
          }
        }
      }
    }
    for (int t = 0; t < kX; ++t) {
      for (int r = 0; r < kW; ++r) {
        float& y = out[t * out_stride + r];
        const float dot = Fold(acc[t][r][0], acc[t][r][1]);
        y = add ? y + dot : dot;
      }
    }
  }
};

}  // namespace

void DotRows(const float* x, int64_t x_stride, int64_t num_x, const ExactRows& w, int64_t num_w, int64_t cols,
             float* out, int64_t out_stride, bool add) {
  DotRowsBy<Avx2Dot>::Run(x, x_stride, num_x, w, num_w, cols, out, out_stride, add);
}

void WeightedSum(const float* p, int64_t n, const float* const* v, int64_t dims, float* out) {
  for (int64_t d = 0; d < dims; d += 8) {
    const int64_t count = dims - d < 8 ? dims - d : 8;
    const __m256i mask =
        _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256 lanes[kDotLanes];  // lane j of 8 outputs
    for (int j = 0; j < kDotLanes; ++j) lanes[j] = _mm256_setzero_ps();
    for (int64_t t = 0; t < n; ++t) {
      __m256& lane = lanes[t % kDotLanes];
      lane = _mm256_fmadd_ps(_mm256_set1_ps(p[t]), _mm256_maskload_ps(v[t] + d, mask), lane);
    }
    for (int s = kDotLanes / 2; s > 0; s /= 2) {
      for (int j = 0; j < s; ++j) lanes[j] = _mm256_add_ps(lanes[j], lanes[j + s]);
    }
    _mm256_maskstore_ps(out + d, mask, _mm256_add_ps(lanes[0], _mm256_setzero_ps()));
  }
}

}  // namespace stoch::cpu::avx2
