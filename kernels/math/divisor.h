// SPDX-License-Identifier: Apache-2.0
// Division of many numbers by one.
#pragma once

#include "kernels/math/elementary.h"

namespace stoch {

// a / b for many a, in five fused operations each.
//
// Bits:   those of a / b, for b in [kLeast, kMost] and a = 0 or a in [kLeast, kMost]; close to a / b for smaller a.
// Source: Markstein, IBM J. Res. Dev. 34 (1990): with the correctly rounded reciprocal, one step from a quotient that is
//         off by less than an ulp rounds correctly; the first step makes such a quotient. Remainders are exact in this
//         range.
class Divisor {
 public:
  static constexpr float kLeast = 0x1p-60f;
  static constexpr float kMost = 0x1p60f;

  STOCH_HD explicit Divisor(float b) : b_(b), reciprocal_(1.0f / b) {}
  STOCH_HD bool IsExact() const { return b_ >= kLeast && b_ <= kMost; }
  STOCH_HD float Quotient(float a) const {
    const float q = a * reciprocal_;
    const float near = Fma(Fma(-b_, q, a), reciprocal_, q);
    return Fma(Fma(-b_, near, a), reciprocal_, near);
  }

 private:
  float b_;
  float reciprocal_;
};

}  // namespace stoch
