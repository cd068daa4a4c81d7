// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of tokens from a row of logits on the host, equal to Backend::Score's bit for bit.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/request/request.h"

namespace stoch {

// M + ln(sum Exp(logit - m)), kept as its two parts so that differences round as in Backend::Score.
// Bits:   m exact; Exp in float, summed in kRowLanes order; ln in double.
struct LogSum {
  double max = 0;
  double log_sum = 0;
  double LogProb(float logit) const { return (static_cast<double>(logit) - max) - log_sum; }
};
LogSum ComputeLogSum(std::span<const float> logits);

// The n ids with the largest logits and their log-probabilities, ties to the lower id.
std::vector<std::pair<int32_t, double>> TopLogProbs(std::span<const float> logits, const LogSum& sum, int n);

// Lowest id of the largest logit.
int32_t HostArgmax(std::span<const float> logits);

}  // namespace stoch
