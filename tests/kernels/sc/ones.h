// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace stoch::test {

// Ones of the first `count` bits.
inline int Ones(const uint64_t* words, int count) {
  int ones = 0;
  for (; count >= 64; count -= 64) ones += std::popcount(*words++);
  return count == 0 ? ones : ones + std::popcount(*words & ((uint64_t{1} << count) - 1));
}

}  // namespace stoch::test
