// SPDX-License-Identifier: Apache-2.0
// Decode: SC linears of up to 8 tokens, one pass over the weights at memory speed.
//
// In one dimension a token has one activation, so the counts of all weights are one row of the count table: 128 bytes,
// one word in each bank of shared memory, so 32 lanes look up 32 weights without bank conflicts. A block stages the
// table rows of one chunk in shared memory, and its warps stream tiles of 32 weight rows x 16 dimensions through
// registers.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/format/task.h"

namespace stoch::cuda {

inline constexpr int kMaxDecodeTasks = kMaxScTasks;  // tasks of a launch, at most

// y = a @ w^T for `count` tasks that share the activations. If a.codes is null, the call has one row, which every block
// quantizes from `source` itself. More than plan.tile_tokens tokens take several launches, each of which reads all
// weights.
// Requires: the plan of this call, whose route is kScDecode; if a.codes is null, activation scales that rows do not
// share.
void LaunchScDecode(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                    const RowSource& source, const SiteReporter& reporter, const ScLinearTask* tasks, int count);

// The stream lengths of one task.
struct ScTaskLengths {
  const LengthView* view = nullptr;  // tables by slot, and the rule
  RowSlots slots;                    // slot of every row, or (row, chunk); not read if blocks pick the slots
};
// y = a @ w^T for `count` tasks in which every row, or (row, chunk), has a stream length of its own, whose slot is read
// on the device. If a.codes is null, the call has one row: every block quantizes it from `source` and picks its slots
// by the rules.
// share_lengths: lengths[0] holds for all tasks, so a chunk is staged once for all; else once for each task.
// Requires: the plan of PlanMixedDecode; at most plan.tile_tokens tokens; views whose `bytes` are not null and whose
//           `levels` are equal; if a.codes is null, PicksSlots of every view with a rule.
// Bits:     docs/research.md#mixed-lengths.
void LaunchScDecodeMixed(DeviceContext& ctx, const LinearPlan& plan, const ScActivationView& a, const RowSource& source,
                         const SiteReporter& reporter, const ScLinearTask* tasks, const ScTaskLengths* lengths,
                         int count, bool share_lengths);
// Whether the decode kernel can evaluate the rule of `view` for the one row that it quantizes: the slot depends on that
// row alone, and the arrays of the rule fit shared memory.
bool PicksSlots(const LengthView& view);

}  // namespace stoch::cuda
