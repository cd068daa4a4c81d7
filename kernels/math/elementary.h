// SPDX-License-Identifier: Apache-2.0
// exp, silu, log, sin and cos built from IEEE operations only: the same bits on every compiler, CPU and GPU.
//
// Requires: no contraction and no fast-math (-ffp-contract=off, --fmad=false); fma only where it is written.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/math/host_device.h"

namespace stoch {

STOCH_HD float BitsToFloat(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
STOCH_HD uint32_t FloatToBits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
STOCH_HD double BitsToDouble(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
STOCH_HD uint64_t DoubleToBits(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Finite and not NaN, independent of compiler flags.
STOCH_HD bool IsFinite(float x) { return (FloatToBits(x) & 0x7f800000u) != 0x7f800000u; }

// e^(x - n ln 2) for x next to n ln 2: what is left of Exp without its power of two.
// Source: Cody-Waite reduction by ln 2 in two parts, degree-6 minimax-like polynomial (Cephes expf coefficients).
STOCH_HD float ExpRest(float x, float n) {
  float r = Fma(n, -0.693359375f, x);
  r = Fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = Fma(p, r, 1.3981999507e-3f);
  p = Fma(p, r, 8.3334519073e-3f);
  p = Fma(p, r, 4.1665795894e-2f);
  p = Fma(p, r, 1.6666665459e-1f);
  p = Fma(p, r, 5.0000001201e-1f);
  p = Fma(p, r * r, r);
  return p + 1.0f;
}

// E^x in float. Below -87 the result is +0, above 88.7 +inf; NaN stays NaN.
// Bits: identical on all backends. Within 2 ulp of the true value.
STOCH_HD float Exp(float x) {
  if (x < -87.0f) return 0.0f;
  if (x > 88.7f) return BitsToFloat(0x7f800000u);
  const float n = Rint(x * 1.44269504f);
  const float p = ExpRest(x, n);
  // Two factors: 2^128 alone does not exist, and NaN must not reach the conversion.
  const int e = x == x ? static_cast<int>(n) : 0;
  const int half = e / 2;
  return (p * BitsToFloat(static_cast<uint32_t>(half + 127) << 23)) *
         BitsToFloat(static_cast<uint32_t>(e - half + 127) << 23);
}

// x * sigmoid(x) = x / (1 + e^-x).
// Bits: identical on all backends.
STOCH_HD float Silu(float x) { return x / (1.0f + Exp(-x)); }

// Natural logarithm of a finite x > 0, in double. Bits: identical on all backends; relative error below 1e-14.
STOCH_HD double Log(double x) {
  uint64_t bits = DoubleToBits(x);
  int e = static_cast<int>(bits >> 52) - 1023;
  if (e == -1023) {  // subnormal: scale into the normal range
    bits = DoubleToBits(x * 18014398509481984.0);
    e = static_cast<int>(bits >> 52) - 1023 - 54;
  }
  double m = BitsToDouble((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m = m * 0.5;
    e = e + 1;
  }
  const double f = (m - 1.0) / (m + 1.0);
  const double s = f * f;
  double p = 1.0 / 23.0;
  p = Fma(p, s, 1.0 / 21.0);
  p = Fma(p, s, 1.0 / 19.0);
  p = Fma(p, s, 1.0 / 17.0);
  p = Fma(p, s, 1.0 / 15.0);
  p = Fma(p, s, 1.0 / 13.0);
  p = Fma(p, s, 1.0 / 11.0);
  p = Fma(p, s, 1.0 / 9.0);
  p = Fma(p, s, 1.0 / 7.0);
  p = Fma(p, s, 1.0 / 5.0);
  p = Fma(p, s, 1.0 / 3.0);
  p = Fma(p, s, 1.0);
  const double k = static_cast<double>(e);
  return Fma(k, 0.6931471805599453, (2.0 * f) * p);
}

// E^x in double for |x| < 700. Bits: identical on all backends; relative error below 1e-14.
STOCH_HD double ExpDouble(double x) {
  const double n = Rint(x * 1.4426950408889634);
  double r = Fma(n, -6.93147180369123816490e-01, x);
  r = Fma(n, -1.90821492927058770002e-10, r);
  double p = 1.0;
  for (int i = 16; i >= 1; --i) p = Fma(p, r / static_cast<double>(i), 1.0);
  return p * BitsToDouble(static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52);
}

// Sine and cosine of |x| < 2^30, in double. Bits: identical on all backends; absolute error below 1e-12.
STOCH_HD void SinCos(double x, double* sine, double* cosine) {
  const double n = Rint(x * 0.6366197723675814);
  double r = Fma(n, -1.5707963267948966, x);
  r = Fma(n, -6.123233995736766e-17, r);
  const double s = r * r;
  double ps = 1.0;
  double pc = 1.0;
  for (int i = 9; i >= 1; --i) {
    const double k = static_cast<double>(2 * i);
    ps = Fma(ps, -s / (k * (k + 1.0)), 1.0);
    pc = Fma(pc, -s / (k * (k - 1.0)), 1.0);
  }
  ps = ps * r;
  const int quadrant = static_cast<int>(static_cast<int64_t>(n) & 3);
  const double a = (quadrant & 1) != 0 ? pc : ps;
  const double b = (quadrant & 1) != 0 ? ps : pc;
  *sine = (quadrant & 2) != 0 ? -a : a;
  *cosine = (quadrant == 1 || quadrant == 2) ? -b : b;
}

}  // namespace stoch
