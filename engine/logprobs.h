// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of tokens from a row of logits on the host, equal to Backend::LogProbs' bit for bit.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/request/request.h"
#include "kernels/math/divergence.h"

namespace stoch {

// Bits: those of divergence.h.
LogSum ComputeLogSum(std::span<const float> logits);

// The n ids with the largest logits and their log-probabilities, ties to the lower id.
std::vector<std::pair<int32_t, double>> TopLogProbs(std::span<const float> logits, const LogSum& sum, int n);

// Lowest id of the largest logit.
int32_t HostArgmax(std::span<const float> logits);

}  // namespace stoch
