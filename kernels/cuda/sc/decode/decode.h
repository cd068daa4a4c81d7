// SPDX-License-Identifier: Apache-2.0
// Decode: SC linears of a few tokens, one pass over the weights at memory speed.
//
// For one dimension the activation is fixed, so the counts of all weights are one row of the count table: 128 bytes, a
// word in each bank of shared memory, where 32 lanes look up 32 weights without conflict. A block stages the rows of a
// chunk once and its warps stream tiles of 32 weight rows through registers.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/format/task.h"

namespace stoch::cuda {

inline constexpr int kMaxDecodeTasks = kMaxScTasks;

// y = a @ w^T for tasks that share the activations, which are quantized already (`a`), or for one row are quantized
// from `source` by the blocks themselves (a.codes == nullptr). Tokens beyond plan.tile_tokens go through the weights
// again.
// Requires: the plan of this launch, whose kernel is kDecode; where the kernel quantizes, scopes of one row each.
void LaunchScDecode(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                    const RowSource& source, const SiteReporter& reporter, const ScLinearTask* tasks, int count);

// The lengths of a task's rows.
struct ScTaskLengths {
  const LengthView* view = nullptr;
  RowSlots slots;
};
// y = a @ w^T where every row, or (row, chunk), of a task has a length of its own, found by its slot on the device. One
// row may come without codes (a.codes == nullptr): blocks then quantize `source` themselves and pick its slots.
// Requires: the plan of PlanMixedDecode; at most plan.tile_tokens tokens; views with bytes, equally many levels; without
//           codes PicksSlots of every rule.
// share_lengths: rows have the slots of the first task for all of them, and slots its tables: chunks are staged once.
// Bits:     docs/research.md#mixed-lengths.
void LaunchScDecodeMixed(DeviceContext& ctx, const LinearPlan& plan, const ScActivationView& a, const RowSource& source,
                         const SiteReporter& reporter, const ScLinearTask* tasks, const ScTaskLengths* lengths,
                         int count, bool share_lengths);
bool PicksSlots(const LengthView& view);

}  // namespace stoch::cuda
