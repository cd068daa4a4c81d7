// SPDX-License-Identifier: Apache-2.0
// A function of one number as pieces of lines in fixed point, as hardware has it in place of SiLU, exp and 1 / sqrt.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/math/elementary.h"

namespace stoch {

enum class NonlinearFunction : uint8_t { kSilu, kExp, kRsqrt };

// Requires: cuts ascend strictly, all numbers are finite; as many values and slopes as cuts, at least one.
// Bits:     host code alone, every operation of floats rounded once.
// Source:   docs/formats.md
struct NonlinearTable {
  NonlinearFunction function = NonlinearFunction::kSilu;
  std::vector<float> cuts, values, slopes;
  std::optional<int> in_bits, out_bits;  // binary places that x and the result are rounded to, -8..20; none: not at all

  // x rounded, then values[i] + slopes[i] * (x - cuts[i]) of the last cut that is not above x, then rounded. Below the
  // first cut, and for NaN: the value there.
  float At(float x) const {
    if (in_bits) x = Rounded(x, *in_bits);
    x = x > cuts.front() ? x : cuts.front();
    // The last cut that is not above x, found without branches: which way is taken is any.
    size_t i = 0;
    for (size_t count = cuts.size(); count > 1;) {
      const size_t half = count / 2;
      i += cuts[i + half] <= x ? half : 0;
      count -= half;
    }
    const float y = values[i] + slopes[i] * (x - cuts[i]);
    return out_bits ? Rounded(y, *out_bits) : y;
  }
  // E^x of a softmax: never below 0, and 0 for a position that is not seen, whose x is -inf.
  float ExpAt(float x) const { return x == -std::numeric_limits<float>::infinity() ? 0.0f : std::max(At(x), 0.0f); }
  // 1 / sqrt(v): At(z) / 2^k, v = 4^k z, z in [1, 4).
  float RsqrtAt(float v) const {
    if (!(v > 0.0f) || !IsFinite(v)) return 1.0f / Sqrt(v);
    const int k = std::ilogb(v) >> 1;
    return std::ldexp(At(std::ldexp(v, -2 * k)), -k);
  }

 private:
  static float Rounded(float x, int bits) {
    const float one = BitsToFloat(static_cast<uint32_t>(127 + bits) << 23);  // 2^bits
    return Rint(x * one) / one;
  }
};

}  // namespace stoch
