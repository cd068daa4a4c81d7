// SPDX-License-Identifier: Apache-2.0
// Row operations with NEON, and the variant's table.
#include "kernels/cpu/simd/neon.h"

#include <arm_neon.h>

#include <cstring>

#include "kernels/math/elementary.h"
#include "kernels/math/half.h"
#include "kernels/math/random.h"
#include "kernels/math/reduce.h"

namespace stoch::cpu {
namespace neon {
namespace {

constexpr int kRowRegisters = kRowLanes / 4;

// FoldLanes over registers, then within the last one.
float FoldRow(float32x4_t* lanes) {
  for (int s = kRowRegisters / 2; s > 0; s /= 2) {
    for (int j = 0; j < s; ++j) lanes[j] = vaddq_f32(lanes[j], lanes[j + s]);
  }
  float last[4];
  vst1q_f32(last, lanes[0]);
  return FoldLanes<4>(last);
}

// Exp of kernels/math/elementary.h, step by step.
float32x4_t Exp4(float32x4_t x) {
  const float32x4_t n = vrndnq_f32(vmulq_f32(x, vdupq_n_f32(1.44269504f)));
  float32x4_t r = vfmaq_f32(x, n, vdupq_n_f32(-0.693359375f));
  r = vfmaq_f32(r, n, vdupq_n_f32(2.12194440e-4f));
  float32x4_t p = vdupq_n_f32(1.9875691500e-4f);
  p = vfmaq_f32(vdupq_n_f32(1.3981999507e-3f), p, r);
  p = vfmaq_f32(vdupq_n_f32(8.3334519073e-3f), p, r);
  p = vfmaq_f32(vdupq_n_f32(4.1665795894e-2f), p, r);
  p = vfmaq_f32(vdupq_n_f32(1.6666665459e-1f), p, r);
  p = vfmaq_f32(vdupq_n_f32(5.0000001201e-1f), p, r);
  p = vfmaq_f32(r, p, vmulq_f32(r, r));
  p = vaddq_f32(p, vdupq_n_f32(1.0f));
  const int32x4_t e = vcvtq_s32_f32(n);  // 0 of NaN
  // e / 2 rounds towards zero.
  const int32x4_t sign = vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(e), 31));
  const int32x4_t half = vshrq_n_s32(vaddq_s32(e, sign), 1);
  const int32x4_t bias = vdupq_n_s32(127);
  const float32x4_t first = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
  const float32x4_t second = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vsubq_s32(e, half), bias), 23));
  float32x4_t y = vmulq_f32(vmulq_f32(p, first), second);
  y = vbslq_f32(vcltq_f32(x, vdupq_n_f32(-87.0f)), vdupq_n_f32(0.0f), y);
  return vbslq_f32(vcgtq_f32(x, vdupq_n_f32(88.7f)), vreinterpretq_f32_u32(vdupq_n_u32(0x7f800000u)), y);
}

float SumSquares(const float* x, int64_t n) {
  float lanes[kRowLanes] = {};
  int64_t i = 0;
  for (; i + kRowLanes <= n; i += kRowLanes) {
    for (int j = 0; j < kRowLanes; j += 4) {
      const float32x4_t values = vld1q_f32(x + i + j);
      vst1q_f32(lanes + j, vfmaq_f32(vld1q_f32(lanes + j), values, values));
    }
  }
  for (int j = 0; i < n; ++i, ++j) lanes[j] = Fma(x[i], x[i], lanes[j]);
  return FoldLanes<kRowLanes>(lanes);
}

float ExpSum(const float* x, int64_t n, float shift, float* e) {
  const float32x4_t shifts = vdupq_n_f32(shift);
  float32x4_t lanes[kRowRegisters];
  for (float32x4_t& lane : lanes) lane = vdupq_n_f32(0.0f);
  for (int64_t i = 0; i < n; i += 4) {
    const int64_t count = n - i < 4 ? n - i : 4;
    float values[4] = {};
    memcpy(values, x + i, static_cast<size_t>(count) * sizeof(float));
    float32x4_t value = Exp4(vsubq_f32(vld1q_f32(values), shifts));
    vst1q_f32(values, value);
    if (count < 4) {
      memset(values + count, 0, static_cast<size_t>(4 - count) * sizeof(float));
      value = vld1q_f32(values);
    }
    if (e != nullptr) memcpy(e + i, values, static_cast<size_t>(count) * sizeof(float));
    float32x4_t& lane = lanes[i / 4 % kRowRegisters];
    lane = vaddq_f32(lane, value);
  }
  return FoldRow(lanes);
}

// NEON has two doubles in a register, so this is the scalar code.
double Divergence(const float* base, const LogSum& base_of, const float* x, const LogSum& of, int64_t n) {
  return ScalarSimd().divergence(base, base_of, x, of, n);
}

void SiluMul(const float* x, const float* x2, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float32x4_t values = vld1q_f32(x + i);
    const float32x4_t denominator = vaddq_f32(vdupq_n_f32(1.0f), Exp4(vnegq_f32(values)));
    vst1q_f32(out + i, vmulq_f32(vdivq_f32(values, denominator), vld1q_f32(x2 + i)));
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
  for (; i + 4 <= n; i += 4) {
    uint16_t halves[4];
    memcpy(halves, bytes + i * 2, sizeof(halves));
    const uint16x4_t stored = vld1_u16(halves);
    vst1q_f32(out + i, dtype == DType::kF16 ? vcvt_f32_f16(vreinterpret_f16_u16(stored))
                                            : vreinterpretq_f32_u32(vshll_n_u16(stored, 16)));
  }
  for (; i < n; ++i) {
    uint16_t half;
    memcpy(&half, bytes + i * 2, sizeof(half));
    out[i] = dtype == DType::kF16 ? F16ToFloat(half) : Bf16ToFloat(half);
  }
}

// NEON has no 64-bit multiplication, so this is the scalar code.
void Random(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, float stddev, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = RandomWeight(seed, stream, first + static_cast<uint64_t>(i), stddev);
}

}  // namespace

// Scalar code there is, for the same instruction set.
void SumByGates(const GateCall& call) { ScalarSimd().gate_sums(call); }

}  // namespace neon

const Simd& NeonSimd() {
  static constexpr Simd kSimd = {"neon",           neon::ScBlock,  neon::SumByGates, neon::ScDequantize,
                                 neon::MaxAbsBits, neon::Quantize, neon::DotRows,    neon::WeightedSum,
                                 neon::SumSquares, neon::ExpSum,   neon::Divergence, neon::SiluMul,
                                 neon::Load,       neon::Random,   &neon::kFixed,    &neon::kPanel};
  return kSimd;
}

}  // namespace stoch::cpu
