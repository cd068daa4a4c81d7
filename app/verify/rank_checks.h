// SPDX-License-Identifier: Apache-2.0
// The checks of `stoch verify --ranks`.
#pragma once

#include <vector>

#include "app/verify/verify.h"

namespace stoch::cli {

// The logits of one process on rank 0's device against those of all ranks. Requires: context.device.ranks.job.
std::vector<Check> RankChecks(const VerifyContext& context);

}  // namespace stoch::cli
