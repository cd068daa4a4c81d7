// SPDX-License-Identifier: Apache-2.0
// Number formats that streams are compared with: E4M3 (OCP 8-bit floating point) and MXINT8 (OCP Microscaling), whose
// sums of products are exact integers (docs/formats.md).
#pragma once

#include <cstdint>

#include "kernels/math/elementary.h"
#include "kernels/math/host_device.h"

namespace stoch {

inline constexpr float kE4m3Max = 448.0f;
// Every number of E4M3 is a multiple of 2^-9, at most 448 * 2^9 of them.
inline constexpr int kE4m3UnitBits = 9;
inline constexpr int64_t kE4m3Levels = int64_t{448} << kE4m3UnitBits;

inline constexpr int64_t kMxBlock = 32;  // dimensions that share an exponent
inline constexpr int kMxLevels = 127;

// 2^exponent. Requires: -149..127.
STOCH_HD float PowerOfTwo(int exponent) {
  return BitsToFloat(exponent < -126 ? 1u << (exponent + 149) : static_cast<uint32_t>(exponent + 127) << 23);
}

// The scale of a scope in E4M3.
STOCH_HD float E4m3Scale(float max_abs) { return (max_abs > 1e-8f ? max_abs : 1e-8f) / kE4m3Max; }

// Sign, 4 bits of exponent, 3 of mantissa: nearest even, magnitudes above 448 become 448. Requires: x is finite.
STOCH_HD uint8_t E4m3Code(float x) {
  const uint32_t bits = FloatToBits(x);
  const float magnitude = BitsToFloat(bits & 0x7fffffffu);
  const uint32_t sign = bits >> 31 << 7;
  if (magnitude >= kE4m3Max) return static_cast<uint8_t>(sign | 0x7e);
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127;
  const int scaled = exponent < -6 ? -6 : exponent;  // subnormal below
  // 8..16 steps of 2^(scaled - 3), or fewer of a subnormal number; 16 carry into the exponent.
  const auto steps = static_cast<uint32_t>(Rint(magnitude * PowerOfTwo(3 - scaled)));
  return static_cast<uint8_t>(sign | ((static_cast<uint32_t>(scaled + 6) << 3) + steps));
}

// The number of a code, in units of 2^-9. Requires: no code of NaN (0x7f, 0xff).
STOCH_HD int32_t E4m3Level(uint8_t code) {
  const int exponent = code >> 3 & 0xf;
  const int mantissa = code & 7;
  const int32_t magnitude = exponent == 0 ? mantissa : (8 + mantissa) << (exponent - 1);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Back from a sum of products of levels.
STOCH_HD float E4m3Product(int64_t acc, float scale_a, float scale_b) {
  return (static_cast<float>(acc) * PowerOfTwo(-2 * kE4m3UnitBits)) * (scale_a * scale_b);
}

// The exponent of a block in MXINT8: floor(log2 max_abs), -127..127.
STOCH_HD int MxExponent(float max_abs) { return static_cast<int>(FloatToBits(max_abs) >> 23) - 127; }
// 2^(exponent - 6): what one step of a code is worth.
STOCH_HD float MxScale(float max_abs) { return PowerOfTwo(MxExponent(max_abs) - 6); }

// Back from a sum of products of codes, rounded once. Requires: |acc| <= 32 * 127 * 127.
STOCH_HD float MxProduct(int32_t acc, float scale_a, float scale_b) {
  return static_cast<float>(static_cast<double>(acc) * (static_cast<double>(scale_a) * static_cast<double>(scale_b)));
}

}  // namespace stoch
