// SPDX-License-Identifier: Apache-2.0
// The one order in which the research suite sums doubles.
#pragma once

#include <cstdint>

namespace stoch {

// Sum of term(i), i < n: 256 strided lanes, each ascending, folded by halves.
template <typename Term>
double RSum(int64_t n, const Term& term) {
  constexpr int kLanes = 256;
  double lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % kLanes] += static_cast<double>(term(i));
  for (int s = kLanes / 2; s > 0; s /= 2) {
    for (int j = 0; j < s; ++j) lanes[j] += lanes[j + s];
  }
  return lanes[0];
}

}  // namespace stoch
