// SPDX-License-Identifier: Apache-2.0
// SC linears of many rows that each have a stream length of their own, on binary wgmma. The device sorts rows by the
// group of their length (LengthGroup of sc/format/lengths.h). Each group is one launch of the prefill kernel, with
// operands as long as the group's longest streams; shorter streams are zeros after their last cycle. The host never
// waits for the lengths.
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

// y = a @ w^T (or y = y + a @ w^T) for `count` tasks that share the activations. Any number of tokens, rows and
// dimensions.
// Requires: 1..kMaxLengthGroups groups, for whose `order` CanPrefillWgmma(mixed) is true; lengths.slots.per_row = 1 if
//           there are several groups; 1 <= count <= kMaxScTasks.
// Scratch:  MixedScratchBytes at most, from ctx.workspace.
void LaunchScRowGroups(DeviceContext& ctx, const CallLengths& lengths, const ScActivationView& a,
                       const ScLinearTask* tasks, int count);

}  // namespace stoch::cuda
