// SPDX-License-Identifier: Apache-2.0
// Picks tokens and computes log-probabilities: the readable reference of kernels/cuda/sampling.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/cpu/context.h"

namespace stoch::cpu {

// Errors: InvalidInput (CheckLogitQueryLimits).
std::unique_ptr<LogitQueryBuffer> MakeLogitQueries(Device device, const LogitQueryLimits& limits);

// The contracts of these are Backend's.
void UploadLogitQueries(LogitQueryBuffer& buffer, const LogitQueries& queries);
void PickTokens(Context& context, const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range);
void LogProbs(Context& context, const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range);

}  // namespace stoch::cpu
