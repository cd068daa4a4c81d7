// SPDX-License-Identifier: Apache-2.0
// Numbers for operands, the same for a seed on every machine.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/math/random.h"

namespace stoch::test {

// Near-normal numbers with an outlier now and then, so that scales differ from chunk to chunk.
inline std::vector<float> RandomFloats(uint64_t seed, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const float x = RandomWeight(seed, 1, static_cast<uint64_t>(i), 1.0f);
    values[static_cast<size_t>(i)] = RandomBits(seed, 2, static_cast<uint64_t>(i)) % 61 == 0 ? x * 9.0f : x;
  }
  return values;
}

}  // namespace stoch::test
