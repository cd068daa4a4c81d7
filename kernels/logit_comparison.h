// SPDX-License-Identifier: Apache-2.0
// What a comparison of two rows of logits gives.
#pragma once

#include <cstdint>

namespace stoch {

// One answer of CompareLogits (calls.h). A row that is not finite has -1 for its likeliest token; then all numbers are
// NaN of the bits kComparisonNan.
struct LogitComparison {
  double kld = 0;           // sum over the vocabulary of p_base * ln(p_base / p)
  double logprob = 0;       // log-probability of the target
  double base_logprob = 0;  // log-probability of the target in the base's distribution
  int32_t top = -1;         // the likeliest token, ties to the lower id
  int32_t base_top = -1;
};

inline constexpr uint64_t kComparisonNan = 0x7ff8000000000000u;

}  // namespace stoch
