// SPDX-License-Identifier: Apache-2.0
// Random (segment, dilation) pairs.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "kernels/dilated.h"

namespace stoch::test {

inline int Pick(std::mt19937& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
}

inline std::vector<DilatedPair> RandomPairs(std::mt19937& random) {
  std::vector<DilatedPair> pairs;
  for (int i = Pick(random, 1, 4); i > 0; --i) {
    pairs.push_back({Pick(random, 1, random() % 2 == 0 ? 20 : 250), Pick(random, 1, 9)});
  }
  return pairs;
}

inline std::string PairsText(const std::vector<DilatedPair>& pairs) {
  std::string text;
  for (const DilatedPair& pair : pairs) {
    text += ' ' + std::to_string(pair.segment) + '/' + std::to_string(pair.dilation);
  }
  return text;
}

}  // namespace stoch::test
