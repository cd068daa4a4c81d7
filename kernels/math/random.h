// SPDX-License-Identifier: Apache-2.0
// Random numbers as a function of (seed, stream, position): no carried state, the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/math/half.h"
#include "kernels/math/host_device.h"

namespace stoch {

// 64 well-mixed bits of one position.
// Source: SplitMix64's output function (Steele, Lea, Flood, OOPSLA 2014) over a Weyl sequence.
STOCH_HD uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
STOCH_HD uint64_t RandomBits(uint64_t seed, uint64_t stream, uint64_t position) {
  return Mix64(Mix64(seed * 0x9e3779b97f4a7c15ull + stream) + (position + 1) * 0x9e3779b97f4a7c15ull);
}

// A uniform number in [0, 1) with 24 bits.
STOCH_HD float RandomUniform(uint64_t seed, uint64_t stream, uint64_t position) {
  return static_cast<float>(RandomBits(seed, stream, position) >> 40) * 5.9604644775390625e-8f;
}

// Element `position` of a random weight tensor: the sum of four 16-bit uniforms (near normal, |x| < 3.47 sigma), times
// stddev, rounded to F16, as float.
// Bits: identical on all backends.
STOCH_HD float RandomWeight(uint64_t seed, uint64_t stream, uint64_t position, float stddev) {
  const uint64_t h = RandomBits(seed, stream, position);
  const int sum = static_cast<int>(h & 0xffff) + static_cast<int>((h >> 16) & 0xffff) +
                  static_cast<int>((h >> 32) & 0xffff) + static_cast<int>(h >> 48) - 131070;
  return F16ToFloat(FloatToF16(static_cast<float>(sum) * (stddev / 37837.227f)));
}

}  // namespace stoch
