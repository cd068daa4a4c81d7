// SPDX-License-Identifier: Apache-2.0
// Fibonacci linear feedback shift registers of 3 to 8 stages. Masks: bit i is the tap of stage i + 1.
#pragma once

#include <bit>
#include <span>

namespace stoch {

// Requires: stages in 1..31.
inline unsigned LfsrMask(std::span<const int> stages) {
  unsigned mask = 0;
  for (const int stage : stages) mask |= 1u << (stage - 1);
  return mask;
}

// The mask of the reciprocal polynomial: the tap of stage i becomes that of stage p - i; stage p always feeds back.
inline unsigned ReciprocalLfsrMask(unsigned mask, int p) {
  unsigned reciprocal = 1u << (p - 1);
  for (int stage = 1; stage < p; ++stage) {
    if ((mask >> (stage - 1)) & 1u) reciprocal |= 1u << (p - stage - 1);
  }
  return reciprocal;
}

// One step: shift left by one, the parity of the tapped stages enters at stage 1.
inline unsigned LfsrStep(unsigned state, unsigned mask, int p) {
  const unsigned feedback = static_cast<unsigned>(std::popcount(state & mask)) & 1u;
  return ((state << 1) | feedback) & ((1u << p) - 1);
}

}  // namespace stoch
