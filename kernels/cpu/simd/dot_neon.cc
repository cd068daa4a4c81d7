// SPDX-License-Identifier: Apache-2.0
// Exact dot products with NEON: the 16 lanes of the contract are four registers.
#include <arm_neon.h>

#include <cstring>

#include "kernels/cpu/simd/dot_rows.h"
#include "kernels/cpu/simd/neon.h"
#include "kernels/math/reduce.h"

namespace stoch::cpu::neon {
namespace {

static_assert(kDotLanes == 16);
constexpr int kRegisters = kDotLanes / 4;

// FoldLanes of 16 lanes.
float Fold(const float32x4_t* lanes) {
  const float32x4_t by8[2] = {vaddq_f32(lanes[0], lanes[2]), vaddq_f32(lanes[1], lanes[3])};
  const float32x4_t by4 = vaddq_f32(by8[0], by8[1]);
  const float32x2_t by2 = vadd_f32(vget_low_f32(by4), vget_high_f32(by4));
  return PlusZero(vget_lane_f32(by2, 0) + vget_lane_f32(by2, 1));
}

template <DType kType>
inline float32x4_t Load4(const char* row, int64_t i) {
  if constexpr (kType == DType::kF32) {
    float values[4];
    memcpy(values, row + i * 4, sizeof(values));
    return vld1q_f32(values);
  } else {
    uint16_t halves[4];
    memcpy(halves, row + i * 2, sizeof(halves));
    const uint16x4_t stored = vld1_u16(halves);
    if constexpr (kType == DType::kF16) return vcvt_f32_f16(vreinterpret_f16_u16(stored));
    return vreinterpretq_f32_u32(vshll_n_u16(stored, 16));
  }
}

// The instruction set of dot_rows.h.
struct NeonDot {
  static constexpr int kTokens = 3;
  static constexpr int RowsOf(int tokens) { return tokens == 1 ? 4 : 2; }

  // kX rows of x times kW rows of w.
  template <DType kType, int kX, int kW, bool kFirst>
  inline static void Tile(const float* x, int64_t x_stride, const char* w, int64_t w_bytes, int64_t cols, float* out,
                          int64_t out_stride, bool add) {
    constexpr int kSize = kType == DType::kF32 ? 4 : 2;
    float32x4_t acc[kX][kW][kRegisters];
    for (int t = 0; t < kX; ++t) {
      for (int r = 0; r < kW; ++r) {
        for (float32x4_t& lanes : acc[t][r]) lanes = vdupq_n_f32(0.0f);
      }
    }
    int64_t i = 0;
    for (; i + kDotLanes <= cols; i += kDotLanes) {
      for (int h = 0; h < kRegisters; ++h) {
        float32x4_t values[kX];
        for (int t = 0; t < kX; ++t) values[t] = vld1q_f32(x + t * x_stride + i + 4 * h);
        for (int r = 0; r < kW; ++r) {
          const float32x4_t weights = Load4<kType>(w + r * w_bytes, i + 4 * h);
          for (int t = 0; t < kX; ++t) acc[t][r][h] = vfmaq_f32(acc[t][r][h], values[t], weights);
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
          for (int h = 0; h < kRegisters; ++h) {
            acc[t][r][h] = vfmaq_f32(acc[t][r][h], vld1q_f32(values + 4 * h), Load4<kType>(weights, 4 * h));
          }
        }
      }
    }
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
  DotRowsBy<NeonDot>::Run(x, x_stride, num_x, w, num_w, cols, out, out_stride, add);
}

void WeightedSum(const float* p, int64_t n, const float* const* v, int64_t dims, float* out) {
  for (int64_t d = 0; d < dims; d += 4) {
    const int64_t count = dims - d < 4 ? dims - d : 4;
    float32x4_t lanes[kDotLanes];  // lane j of 4 outputs
    for (float32x4_t& lane : lanes) lane = vdupq_n_f32(0.0f);
    for (int64_t t = 0; t < n; ++t) {
      float values[4] = {};
      memcpy(values, v[t] + d, static_cast<size_t>(count) * sizeof(float));
      float32x4_t& lane = lanes[t % kDotLanes];
      lane = vfmaq_n_f32(lane, vld1q_f32(values), p[t]);
    }
    for (int s = kDotLanes / 2; s > 0; s /= 2) {
      for (int j = 0; j < s; ++j) lanes[j] = vaddq_f32(lanes[j], lanes[j + s]);
    }
    float sums[4];
    vst1q_f32(sums, vaddq_f32(lanes[0], vdupq_n_f32(0.0f)));
    memcpy(out + d, sums, static_cast<size_t>(count) * sizeof(float));
  }
}

}  // namespace stoch::cpu::neon
