// SPDX-License-Identifier: Apache-2.0
// Sign-magnitude codes of many numbers of one scope.
#pragma once

#include <cstdint>

#include "kernels/math/divisor.h"

namespace stoch {

// SignMagnitude(BipolarLevel(x, scale, q_max)) for many x, without divisions.
//
// Bits: those of quantize.h, for a scale in [kLeast, kMost] and |x| <= kMostLevels * scale. q_max <= 127.
class SignedCodes {
 public:
  static constexpr float kLeast = 0x1p-50f;
  static constexpr float kMost = 0x1p50f;
  static constexpr float kMostLevels = 0x1p10f;

  STOCH_HD SignedCodes(float scale, int q_max)
      : divisor_(scale), q_max_(static_cast<float>(q_max)), is_exact_(scale >= kLeast && scale <= kMost) {}
  // Whether the scale is in range.
  STOCH_HD bool IsExact() const { return is_exact_; }
  STOCH_HD uint8_t Of(float x) const {
    // A number that is too small for the divisor is far below half a level.
    const float magnitude = divisor_.Quotient(x < 0.0f ? -x : x);
    constexpr float kShift = 8388608.0f;  // 2^23: adding it rounds to an integer, as Rint does
    const uint32_t level = FloatToBits((magnitude < q_max_ ? magnitude : q_max_) + kShift) & 0x7f;
    return static_cast<uint8_t>(x < 0.0f && level != 0 ? 0x80 | level : level);
  }

 private:
  static_assert(kLeast * 0x1p-10f == Divisor::kLeast && kMost * kMostLevels == Divisor::kMost);
  Divisor divisor_;
  float q_max_;
  bool is_exact_;
};

}  // namespace stoch
