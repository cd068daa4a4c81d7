// SPDX-License-Identifier: Apache-2.0
// SC linears of prompts whose rows, or (row, chunk) pairs, have different stream lengths: products on binary tensor
// cores, where a shorter stream is padded with zeros after its last cycle. The host never waits.
//
// Bits: identical to the CPU backend; defined in docs/research.md#mixed-lengths.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/mixed/task.h"

namespace stoch::cuda {

// y = f(x) @ w^T for each task, set or added to the task's output.
// Requires: 1..kMaxScTasks tasks whose routes are for prompts (IsMixedPrompt); SharesRows holds for every two tasks.
void LaunchMixedPrompt(DeviceContext& ctx, const OpSite& site, const RowSource& source, int64_t rows,
                       std::span<const MixedTask> tasks, const SiteReporter& reporter);

}  // namespace stoch::cuda
