// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of a row of logits, and what one token adds to a KL divergence: the same bits everywhere.
#pragma once

#include "kernels/math/elementary.h"
#include "kernels/math/host_device.h"

namespace stoch {

// m + ln(sum Exp(logit - m)), kept as its two parts so that every backend rounds differences alike.
// Bits: m exact; Exp in float, summed in kRowLanes order; ln in double.
struct LogSum {
  double max = 0;
  double log_sum = 0;
  STOCH_HD double LogProb(float logit) const { return (static_cast<double>(logit) - max) - log_sum; }
};

// p_base * ln(p_base / p) of one token, from its log-probabilities. A p_base below e^-700 counts as 0.
// Requires: finite log-probabilities, base_logprob <= 0. Bits: identical on all backends.
STOCH_HD double DivergenceTerm(double base_logprob, double logprob) {
  const double p_base = base_logprob < -700.0 ? 0.0 : ExpDouble(base_logprob);
  return p_base * (base_logprob - logprob);
}

}  // namespace stoch
