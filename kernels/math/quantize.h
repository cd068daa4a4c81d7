// The quantizers of the SC arithmetic, one element at a time (shared/spec: sc_arithmetic, sections 2 and 5).
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace stoch {

inline constexpr float kScaleFloor = 1e-5f;

// Bipolar: the scale of a scope whose largest magnitude is `max_abs`; q_max = 2^(p-1) - 1.
STOCH_HD float BipolarScale(float max_abs, int q_max) {
  const float m = max_abs > kScaleFloor ? max_abs : kScaleFloor;
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

}  // namespace stoch
