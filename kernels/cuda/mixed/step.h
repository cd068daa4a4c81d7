// SPDX-License-Identifier: Apache-2.0
// Steps of a few rows, or (row, chunk)s, with stream lengths of their own: some rows at a time by the routes of
// kernels/plan/linear/mixed.h. The host waits for nothing, so that a graph may hold them, and weights that share f(x) share
// launches.
//
// Bits: docs/research.md#mixed-lengths, as on the CPU.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/mixed/task.h"

namespace stoch::cuda {

// y = f(x) @ w^T, set or added.
// Requires: 1..kMaxScTasks tasks, with routes of steps (IsMixedStep), and SharesRows of each two.
void LaunchMixedStep(DeviceContext& ctx, const OpSite& site, const RowSource& source, int64_t rows,
                     std::span<const MixedTask> tasks, const LinearPass& pass, const SiteReporter& reporter);

}  // namespace stoch::cuda
