// SPDX-License-Identifier: Apache-2.0
// tanh, the GELU made of it, and soft caps: the same bits on every compiler, CPU and GPU.
#pragma once

#include "kernels/math/elementary.h"

namespace stoch {

// Hyperbolic tangent in float; NaN stays NaN.
// Bits:   identical on all backends. Within 3 ulp of the true value.
// Source: Cephes tanhf, with Exp as its exponential.
STOCH_HD float Tanh(float x) {
  const float size = BitsToFloat(FloatToBits(x) & 0x7fffffffu);
  if (size < 0.625f) {
    const float z = x * x;
    float p = -5.70498872745e-3f;
    p = Fma(p, z, 2.06390887954e-2f);
    p = Fma(p, z, -5.37397155531e-2f);
    p = Fma(p, z, 1.33314422036e-1f);
    p = Fma(p, z, -3.33332819422e-1f);
    return Fma(p * z, x, x);
  }
  const float rest = 1.0f - 2.0f / (Exp(2.0f * size) + 1.0f);
  return x < 0.0f ? -rest : rest;
}

// x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))): gelu_pytorch_tanh of transformers.
// Bits: identical on all backends.
STOCH_HD float GeluTanh(float x) {
  const float inner = 0.79788456f * (x + 0.044715f * (x * x * x));
  return 0.5f * x * (1.0f + Tanh(inner));
}

// cap * tanh(x / cap), which stays in (-cap, cap) and next to x around 0.
// Requires: cap > 0. Bits: identical on all backends.
STOCH_HD float SoftCap(float x, float cap) { return cap * Tanh(x / cap); }

}  // namespace stoch
