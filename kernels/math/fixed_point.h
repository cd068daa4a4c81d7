// SPDX-License-Identifier: Apache-2.0
// Products of rows of numbers as integers, whose sums have no order: what an exact LM head with 16-bit weights computes.
//
// A row of weights and a row of x each become integers of their own power of two: with 2^e the least that every magnitude
// of the row is below, q = rint(w * 2^(15 - e)) and a = rint(x * 2^(22 - e)), to nearest even. Then S = sum of a * q, in
// 64 bits, and y = float(double(S) * 2^-(both exponents)): rounded once.
// bf16 within 2^-8 and f16 within 2^-5 of its row's largest is exact so; what is smaller is off by at most 2^-16 of that,
// x by at most 2^-23 of its row's largest.
//
// Bits: the same whatever the order, the split of a row or the digits in which integers are multiplied.
#pragma once

#include <cstdint>

#include "kernels/math/elementary.h"
#include "kernels/math/host_device.h"

namespace stoch {

inline constexpr int kFixedWeightBits = 15;  // |q| <= 2^15 - 2^4: a 16-bit float has at most 11 significant bits
inline constexpr int kFixedInputBits = 22;   // |a| <= 2^22
// |S| < 2^53, so that the double is S itself, and sums of products of 8-bit digits fit 32 bits.
inline constexpr int64_t kMaxFixedColumns = 32768;

// The power of two that takes numbers below 2^e, the least such of the row, below 2^bits. max_bits: the bits of the row's
// largest magnitude, finite. Within [2^-126, 2^127], so that a row of zeros or of very small numbers has one, too.
STOCH_HD float FixedScale(uint32_t max_bits, int bits) {
  const int exponent = bits + 126 - static_cast<int>(max_bits >> 23);
  return BitsToFloat(static_cast<uint32_t>((exponent > 127 ? 127 : exponent) + 127) << 23);
}

// The integer of a number of a row. Requires: scale is the row's.
STOCH_HD int32_t FixedInteger(float value, float scale) { return static_cast<int32_t>(Rint(value * scale)); }

// The value of one unit.
STOCH_HD double FixedUnit(float scale) { return 1.0 / static_cast<double>(scale); }

// The value of a sum. Bits: one rounding, for up to kMaxFixedColumns columns.
STOCH_HD float FixedResult(int64_t sum, double input_unit, double weight_unit) {
  return static_cast<float>(static_cast<double>(sum) * (input_unit * weight_unit));
}

}  // namespace stoch
