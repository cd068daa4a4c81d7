// SPDX-License-Identifier: Apache-2.0
// A NonlinearTable (nonlinear_table.h) as kernels read it, on a host and on a device.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/math/elementary.h"
#include "kernels/math/nonlinear_table.h"
#include "kernels/math/number_formats.h"

namespace stoch {

// Without pieces it stands for no table.
// Bits:     At, ExpAt and RsqrtAt are those of NonlinearTable on all backends, every operation of floats rounded once.
struct NonlinearView {
  const float* cuts = nullptr;  // [size], as values and slopes
  const float* values = nullptr;
  const float* slopes = nullptr;
  int32_t size = 0;
  float in_steps = 0, out_steps = 0;  // that 1 has, powers of two; 0: not rounded

  // x rounded, then values[i] + slopes[i] * (x - cuts[i]) of the last cut that is not above x, then rounded. Below the
  // first cut, and for NaN: the value there. Requires: pieces.
  STOCH_HD float At(float x) const {
    x = Rounded(x, in_steps);
    x = x > cuts[0] ? x : cuts[0];
    int32_t i = 0;
    for (int32_t end = size; end - i > 1;) {
      const int32_t middle = i + (end - i) / 2;
      if (cuts[middle] <= x) {
        i = middle;
      } else {
        end = middle;
      }
    }
    return Rounded(values[i] + slopes[i] * (x - cuts[i]), out_steps);
  }
  // E^x of a softmax: never below 0, and 0 for a position that is not seen, whose x is -inf.
  STOCH_HD float ExpAt(float x) const {
    if (FloatToBits(x) == 0xff800000u) return 0.0f;
    const float y = At(x);
    return y < 0.0f ? 0.0f : y;
  }
  // 1 / sqrt(v): At(z) / 2^k, v = 4^k z, z in [1, 4).
  STOCH_HD float RsqrtAt(float v) const {
    if (!(v > 0.0f) || !IsFinite(v)) return 1.0f / Sqrt(v);
    const bool subnormal = v < PowerOfTwo(-126);
    const int exponent = static_cast<int>(FloatToBits(subnormal ? v * PowerOfTwo(24) : v) >> 23) - 127;
    const int k = (exponent - (subnormal ? 24 : 0)) >> 1;
    const float part = PowerOfTwo(-k);
    return At((v * part) * part) * part;  // products with powers of two are exact
  }

 private:
  STOCH_HD static float Rounded(float x, float steps) { return steps > 0.0f ? Rint(x * steps) / steps : x; }
};

// The view of a table in memory of the host. Requires: the table lives as long.
inline NonlinearView ViewOf(const NonlinearTable& table) {
  NonlinearView view{table.cuts.data(), table.values.data(), table.slopes.data(),
                     static_cast<int32_t>(table.cuts.size())};
  if (table.in_bits) view.in_steps = std::ldexp(1.0f, *table.in_bits);
  if (table.out_bits) view.out_steps = std::ldexp(1.0f, *table.out_bits);
  return view;
}

}  // namespace stoch
