// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/softmax.h"

#include <algorithm>

#include "kernels/math/reduce.h"

namespace stoch::cpu {

float ExpSum(const Simd& simd, const NonlinearTable* table, float* x, int64_t n, float shift) {
  if (table == nullptr) return simd.exp_sum(x, n, shift, x);
  float lanes[kRowLanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    x[i] = table->ExpAt(x[i] - shift);
    lanes[i % kRowLanes] = lanes[i % kRowLanes] + x[i];
  }
  return FoldLanes<kRowLanes>(lanes);
}

void Softmax(const Simd& simd, float* scores, int64_t n, const NonlinearTable* table) {
  // Eight maxima, which a compiler keeps in vectors; which zero is the largest does not matter to Exp.
  constexpr int64_t kLanes = 8;
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, scores[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] = scores[i + j] > lanes[j] ? scores[i + j] : lanes[j];
  }
  for (; i < n; ++i) lanes[0] = scores[i] > lanes[0] ? scores[i] : lanes[0];
  float max = lanes[0];
  for (const float lane : lanes) max = lane > max ? lane : max;
  const float sum = ExpSum(simd, table, scores, n, max);
  for (i = 0; i < n; ++i) scores[i] = scores[i] / sum;
}

}  // namespace stoch::cpu
