// SPDX-License-Identifier: Apache-2.0
// Exact conversions between float and the 16-bit formats, round to nearest even.
#pragma once

#include <cstdint>

#include "kernels/math/elementary.h"
#include "kernels/math/host_device.h"

namespace stoch {

// The nearest number that BF16 has, as a float. NaNs stay NaNs, with all bits that they have.
STOCH_HD float RoundToBf16(float value) {
  const uint32_t bits = FloatToBits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return BitsToFloat(bits | 0x400000u);
  return BitsToFloat((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}

STOCH_HD float Bf16ToFloat(uint16_t h) { return BitsToFloat(static_cast<uint32_t>(h) << 16); }

STOCH_HD float F16ToFloat(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return BitsToFloat(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x0400u) return BitsToFloat(sign | ((magnitude + 0x1c000u) << 13));
  const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // subnormal: magnitude * 2^-24, exact
  return BitsToFloat(sign | FloatToBits(value));
}

STOCH_HD uint16_t FloatToF16(float value) {
  const uint32_t bits = FloatToBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal or zero: 2^-24 steps
    const float steps = Rint(BitsToFloat(magnitude) * 16777216.0f);
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(steps));
  }
  magnitude += 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u) >> 13));
}

}  // namespace stoch
