// SPDX-License-Identifier: Apache-2.0
// SC linears of decode steps (few rows) whose rows, or (row, chunk) pairs, have different stream lengths. The rows are
// launched a few at a time by the routes of kernels/plan/linear/mixed.h; weights that share f(x) share launches. The
// host never waits, so graphs may contain these ops.
//
// Bits: identical to the CPU backend; defined in docs/research.md#mixed-lengths.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/mixed/task.h"

namespace stoch::cuda {

// y = f(x) @ w^T for each task, set or added to the task's output.
// Requires: 1..kMaxScTasks tasks whose routes are for steps (IsMixedStep); SharesRows holds for every two tasks.
void LaunchMixedStep(DeviceContext& ctx, const OpSite& site, const RowSource& source, int64_t rows,
                     std::span<const MixedTask> tasks, const LinearPass& pass, const SiteReporter& reporter);

}  // namespace stoch::cuda
