// SPDX-License-Identifier: Apache-2.0
// The exponential of a softmax, whose argument is a score less the largest one.
#pragma once

#include "kernels/math/elementary.h"

namespace stoch {

// Exp(x) of x <= 0, or NaN, in half of its instructions and without conversions.
// Bits: those of Exp. Rounding to an integer is an addition that leaves no bits behind it, 2^n needs no second factor as
// n >= -126, and no result is subnormal.
STOCH_HD float SoftmaxExp(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
  const float shifted = x * 1.44269504f + kShift;
  const float e = ExpRest(x, shifted - kShift) * BitsToFloat((FloatToBits(shifted) << 23) + 0x3f800000u);
  return x < -87.0f ? 0.0f : e;
}

}  // namespace stoch
