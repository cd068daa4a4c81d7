// SPDX-License-Identifier: Apache-2.0
// Prompts of linears whose rows, or (row, chunk)s, have stream lengths of their own: products on binary tensor cores, where
// shorter streams are zeros after their last cycle. The host waits for nothing.
//
// Bits: docs/research.md#mixed-lengths, as on the CPU.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/mixed/task.h"

namespace stoch::cuda {

// y = f(x) @ w^T, set or added.
// Requires: 1..kMaxScTasks tasks, with routes of prompts (IsMixedPrompt), and SharesRows of each two.
void LaunchMixedPrompt(DeviceContext& ctx, const OpSite& site, const RowSource& source, int64_t rows,
                       std::span<const MixedTask> tasks, const SiteReporter& reporter);

}  // namespace stoch::cuda
