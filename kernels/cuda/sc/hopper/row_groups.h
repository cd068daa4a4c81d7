// SPDX-License-Identifier: Apache-2.0
// SC linears of many rows with stream lengths of their own on binary tensor cores. Rows are put in order of the group of
// their length (sc/format/lengths.h) by the device, and each group is a product on the tensor cores with operands as
// long as its longest streams; shorter ones are zeros after their last cycle. The host waits for nothing.
//
// Bits:   docs/research.md#mixed-lengths, as on the CPU.
// Source: docs/fast-kernels.md#prompts.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/cuda/sc/format/task.h"

namespace stoch::cuda {

// y = a @ w^T (or y = y + that) for each task; all share the activations. Any number of tokens, rows and dimensions.
// Requires: 1..kMaxLengthGroups groups, whose orders CanPrefillWgmma takes (mixed); with several groups a slot a row;
//           1 <= count <= kMaxScTasks.
// Scratch:  MixedScratchBytes at most, from ctx.workspace.
void LaunchScRowGroups(DeviceContext& ctx, const CallLengths& lengths, const ScActivationView& a,
                       const ScLinearTask* tasks, int count);

}  // namespace stoch::cuda
