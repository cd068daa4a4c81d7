// SPDX-License-Identifier: Apache-2.0
// Exact dot products with AVX-512: the 16 lanes of the contract are one register.
#include "kernels/cpu/simd/avx512.h"
#include "kernels/cpu/simd/dot_rows.h"
#include "kernels/math/reduce.h"

namespace stoch::cpu::avx512 {
namespace {

static_assert(kDotLanes == 16);

// FoldLanes of one register.
__attribute__((always_inline)) inline float Fold(__m512 lanes) {
  const __m256 by8 = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return PlusZero(_mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2))));
}

template <DType kType>
__attribute__((always_inline)) inline __m512 LoadLanes(const void* row, int64_t i, __mmask16 mask) {
  if constexpr (kType == DType::kF32) {
    return _mm512_maskz_loadu_ps(mask, static_cast<const char*>(row) + i * 4);
  } else {
    const __m256i halves = _mm256_maskz_loadu_epi16(mask, static_cast<const char*>(row) + i * 2);
    if constexpr (kType == DType::kF16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
}

// How far ahead of their use weights are prefetched into L2, in bytes of a row and on into the row that follows it in
// this lane of the tile: the hardware's own prefetching starts again in every row and comes late. Into L1, a Zen 4 reads
// 12 GB/s on one thread instead of 25.
constexpr int64_t kAhead = 3072;

// The instruction set of dot_rows.h.
struct Avx512Dot {
  static constexpr int kTokens = 4;
  // One row of x: as few rows as hide the latency of a sum, for more of them crowd each other out of the first-level
  // cache (rows are often a power of two apart): 3 read 52 GB/s where 6 read 46.
  static constexpr int RowsOf(int tokens) { return tokens == 1 ? 3 : 6; }

  // kX rows of x times kW rows of w: every loaded register meets several others. A masked tail adds fma(0, 0, lane), see
  // reduce.h. kFirst: w comes from memory.
  template <DType kType, int kX, int kW, bool kFirst>
  __attribute__((always_inline)) static inline void Tile(const float* x, int64_t x_stride, const char* w,
                                                         int64_t w_bytes, int64_t cols, float* out, int64_t out_stride,
                                                         bool add) {
    constexpr int64_t kLine = 64;
    constexpr int64_t kBytes = kType == DType::kF32 ? 4 : 2;
    constexpr int64_t kLineCols = kLine / kBytes;
    __m512 acc[kX][kW];
    for (int t = 0; t < kX; ++t) {
      for (int r = 0; r < kW; ++r) acc[t][r] = _mm512_setzero_ps();
    }
    const auto step = [&](int64_t i, __mmask16 mask) __attribute__((always_inline)) {
      __m512 values[kX];
      for (int t = 0; t < kX; ++t) values[t] = _mm512_maskz_loadu_ps(mask, x + t * x_stride + i);
      for (int r = 0; r < kW; ++r) {
        const __m512 weights = LoadLanes<kType>(w + r * w_bytes, i, mask);
        for (int t = 0; t < kX; ++t) acc[t][r] = _mm512_fmadd_ps(values[t], weights, acc[t][r]);
      }
    };
    int64_t i = 0;
    for (; i + kLineCols <= cols; i += kLineCols) {
      if constexpr (kFirst) {
        const int64_t ahead = i * kBytes + kAhead;
        const char* at = w + ahead + (ahead < w_bytes ? 0 : (kW - 1) * w_bytes);
        for (int r = 0; r < kW; ++r) _mm_prefetch(at + r * w_bytes, _MM_HINT_T1);
      }
      for (int64_t j = 0; j < kLineCols; j += 16) step(i + j, static_cast<__mmask16>(0xffff));
    }
    for (; i < cols; i += 16) step(i, LaneMask(cols - i));
    for (int t = 0; t < kX; ++t) {
      for (int r = 0; r < kW; ++r) {
        float& y = out[t * out_stride + r];
        const float dot = Fold(acc[t][r]);
        y = add ? y + dot : dot;
      }
    }
  }
};

}  // namespace

void DotRows(const float* x, int64_t x_stride, int64_t num_x, const ExactRows& w, int64_t num_w, int64_t cols,
             float* out, int64_t out_stride, bool add) {
  DotRowsBy<Avx512Dot>::Run(x, x_stride, num_x, w, num_w, cols, out, out_stride, add);
}

void WeightedSum(const float* p, int64_t n, const float* const* v, int64_t dims, float* out) {
  for (int64_t d = 0; d < dims; d += 16) {
    const __mmask16 mask = LaneMask(dims - d);
    __m512 lanes[kDotLanes];  // lane j of 16 outputs
    for (int j = 0; j < kDotLanes; ++j) lanes[j] = _mm512_setzero_ps();
    int64_t t = 0;
    for (; t + kDotLanes <= n; t += kDotLanes) {
      for (int j = 0; j < kDotLanes; ++j) {
        lanes[j] = _mm512_fmadd_ps(_mm512_set1_ps(p[t + j]), _mm512_maskz_loadu_ps(mask, v[t + j] + d), lanes[j]);
      }
    }
    for (int j = 0; j < kDotLanes; ++j) {
      if (t + j >= n) break;
      lanes[j] = _mm512_fmadd_ps(_mm512_set1_ps(p[t + j]), _mm512_maskz_loadu_ps(mask, v[t + j] + d), lanes[j]);
    }
    for (int s = kDotLanes / 2; s > 0; s /= 2) {
      for (int j = 0; j < s; ++j) lanes[j] = _mm512_add_ps(lanes[j], lanes[j + s]);
    }
    _mm512_mask_storeu_ps(out + d, mask, _mm512_add_ps(lanes[0], _mm512_setzero_ps()));
  }
}

}  // namespace stoch::cpu::avx512
