// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/attention/split/split.h"

namespace stoch::cuda {
namespace {

SplitArgs MakeSplitArgs(const AttentionArgs& args, const SplitPlan& plan, const SplitScratch& scratch) {
  SplitArgs split;
  split.attention = args;
  split.scratch = scratch;
  split.block_heads = plan.block_heads;
  split.head_blocks = plan.head_blocks;
  split.score_blocks = plan.score_blocks;
  split.value_blocks = plan.value_blocks;
  split.resident_positions = plan.positions;
  split.resident_masks = plan.masks;
  split.is_one_block = plan.softmax == SplitSoftmax::kOneBlock;
  return split;
}

// Calls launch() once for every group of at most scratch.rows rows, after setting the group's rows in `split`.
template <typename Launch>
void ForRows(SplitArgs& split, const RowSet& rows, const Launch& launch) {
  const int at_once = split.scratch.rows;
  for (int first = 0; first < rows.count; first += at_once) {
    split.rows = std::min(at_once, rows.count - first);
    split.row_list = rows.list != nullptr ? rows.list + first : nullptr;
    split.row_offset = first;
    launch();
  }
}

}  // namespace

void LaunchScSplit(DeviceContext& ctx, const AttentionArgs& args, const SplitPlan& plan, const ScOperands& operands,
                   const RowSet& rows, const SplitScratch& scratch) {
  SplitArgs split = MakeSplitArgs(args, plan, scratch);
  split.qk = operands.qk;
  split.av = operands.av;
  split.q = operands.q;
  split.posted = operands.posted;
  split.peers = operands.peers;
  split.resident_bytes = static_cast<int32_t>(SplitStreamBytes(plan.masks, operands.av.levels));
  split.flags = reinterpret_cast<uint32_t*>(ctx.flags());
  ForRows(split, rows, [&] {
    switch (plan.kernel) {
      case SplitKernel::kLookup:
      case SplitKernel::kLookupWords: return LaunchSplitLookup(ctx, plan, split);
      case SplitKernel::kResident: return LaunchSplitResident(ctx, plan, split);
      case SplitKernel::kParts:
      case SplitKernel::kNone: break;
    }
    LaunchSplitScores(ctx, plan, split);
    LaunchSplitSoftmax(ctx, split, false);
    LaunchSplitValues(ctx, plan, split);
  });
}

void LaunchExactSplit(DeviceContext& ctx, const AttentionArgs& args, const SplitPlan& plan, const RowSet& rows,
                      const SplitScratch& scratch) {
  SplitArgs split = MakeSplitArgs(args, plan, scratch);
  ForRows(split, rows, [&] {
    LaunchSplitExactScores(ctx, split);
    LaunchSplitSoftmax(ctx, split, true);
    LaunchSplitExactValues(ctx, split);
  });
}

}  // namespace stoch::cuda
