// SPDX-License-Identifier: Apache-2.0
#include "engine/logprobs.h"

#include <algorithm>
#include <numeric>

#include "kernels/math/elementary.h"
#include "kernels/math/reduce.h"

namespace stoch {

LogSum ComputeLogSum(std::span<const float> logits) {
  const float max = *std::max_element(logits.begin(), logits.end());
  float lanes[kRowLanes] = {};
  for (size_t i = 0; i < logits.size(); ++i) {
    float& lane = lanes[i % kRowLanes];
    lane = lane + Exp(logits[i] - max);
  }
  return {static_cast<double>(max), Log(static_cast<double>(FoldLanes<kRowLanes>(lanes)))};
}

std::vector<std::pair<int32_t, double>> TopLogProbs(std::span<const float> logits, const LogSum& sum, int n) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto count = static_cast<std::ptrdiff_t>(std::min(static_cast<size_t>(n), order.size()));
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  std::vector<std::pair<int32_t, double>> top;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const int32_t id = order[static_cast<size_t>(i)];
    top.emplace_back(id, sum.LogProb(logits[static_cast<size_t>(id)]));
  }
  return top;
}

int32_t HostArgmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace stoch
