// SPDX-License-Identifier: Apache-2.0
// The quantizers of the SC arithmetic, one element at a time (docs/sc_arithmetic.md#2-quantizers).
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace stoch {

inline constexpr float kScaleFloor = 1e-5f;

// Bipolar: the scale of a scope whose largest magnitude is `max_abs`; q_max = 2^(p-1) - 1.
STOCH_HD float BipolarScale(float max_abs, int q_max, float floor = kScaleFloor) {
  const float m = max_abs > floor ? max_abs : floor;
  return m / static_cast<float>(q_max);
}

// Bipolar: clamp(rint(x / scale), -q_max, q_max).
STOCH_HD int BipolarLevel(float x, float scale, int q_max) {
  const float level = Rint(x / scale);
  const float limit = static_cast<float>(q_max);
  return static_cast<int>(level < -limit ? -limit : (level > limit ? limit : level));
}

// Sign-magnitude code byte: bit 7 = negative, bits 0..6 = magnitude. Zero is 0x00, never 0x80.
STOCH_HD uint8_t SignMagnitude(int level) { return static_cast<uint8_t>(level < 0 ? (0x80 | -level) : level); }

// Unipolar: scale and zero point of a scope with the given extremes; q_max = 2^p - 1.
STOCH_HD float UnipolarScale(float min, float max, int q_max) {
  const float range = max - min;
  return (range > kScaleFloor ? range : kScaleFloor) / static_cast<float>(q_max);
}
STOCH_HD float ClampRint(float x, float limit) {
  const float level = Rint(x);
  return level < 0.0f ? 0.0f : (level > limit ? limit : level);
}
STOCH_HD float UnipolarZero(float min, float scale, int q_max) {
  return ClampRint(-min / scale, static_cast<float>(q_max));
}
STOCH_HD uint8_t UnipolarCode(float x, float scale, float zero, int q_max) {
  return static_cast<uint8_t>(ClampRint(x / scale + zero, static_cast<float>(q_max)));
}

// Section 5: what one integer sum adds to y. Every operation is rounded, in this order.
STOCH_HD float BipolarProduct(int acc, float gain, float scale_a, float scale_b) {
  return (static_cast<float>(acc) * gain) * (scale_a * scale_b);
}

// Section 5, unipolar: zero points, row sums of codes and the number of dimensions correct the offset of both sides.
struct UnipolarRow {
  float scale;
  float zero;
  int sum;
};
STOCH_HD float UnipolarProduct(int acc, float gain, int dims, const UnipolarRow& a, const UnipolarRow& b) {
  const float sum_a = static_cast<float>(a.sum);
  const float sum_b = static_cast<float>(b.sum);
  const float correction = ((-b.zero * sum_a) - (a.zero * sum_b)) + ((static_cast<float>(dims) * a.zero) * b.zero);
  return ((static_cast<float>(acc) * gain) + correction) * (a.scale * b.scale);
}

}  // namespace stoch
