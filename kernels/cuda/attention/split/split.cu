// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/attention/split/split.h"
#include "kernels/cuda/attention/tile_window.h"

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
  split.fused_units = plan.fused_units;
  split.resident_positions = plan.resident_positions;
  split.resident_masks = plan.resident_masks;
  split.is_one_block = plan.is_one_block;
  return split;
}

// Calls launch() for as many rows at a time as the scratch holds.
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

void LaunchSc(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
              const ScTables& av, const QueryCodes& q, const PostedHeads& posted, const PostPeers& peers,
              const RowSet& rows, const SplitScratch& scratch) {
  const SplitPlan plan =
      PlanSplit(ctx.traits, shape, std::min(rows.count, scratch.rows), ReachOf(args, rows.max_length));
  SplitArgs split = MakeSplitArgs(args, plan, scratch);
  split.qk = qk;
  split.av = av;
  split.q = q;
  split.posted = posted;
  split.peers = peers;
  split.resident_bytes = static_cast<int32_t>(SplitStreamBytes(plan.resident_masks, av.levels));
  split.flags = reinterpret_cast<uint32_t*>(ctx.flags());
  const bool has_whole_tiles = args.kv.page_tokens >= kSplitLookupTile;
  ForRows(split, rows, [&] {
    if (plan.is_lookup && has_whole_tiles) return LaunchSplitLookup(ctx, plan, split);
    if (plan.is_resident && has_whole_tiles) return LaunchSplitResident(ctx, plan, split);
    if (plan.is_fused) return LaunchSplitFused(ctx, plan, split);
    LaunchSplitScores(ctx, plan, split);
    LaunchSplitSoftmax(ctx, split, false);
    LaunchSplitValues(ctx, plan, split);
  });
}

}  // namespace

bool SplitPolls(const DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, int32_t max_length) {
  return args.rows == 1 && args.kv.page_tokens >= kSplitLookupTile &&
         PlanSplit(ctx.traits, shape, 1, ReachOf(args, max_length)).is_resident;
}

void LaunchPostedSplit(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
                       const ScTables& av, const PostedHeads& posted, const PostPeers& peers, const RowSet& row,
                       const SplitScratch& scratch) {
  LaunchSc(ctx, args, shape, qk, av, {}, posted, peers, row, scratch);
  OfferOutput(ctx, args, posted.out);
}

void LaunchScSplit(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
                   const ScTables& av, const QueryCodes& q, const RowSet& rows, const SplitScratch& scratch) {
  LaunchSc(ctx, args, shape, qk, av, q, {}, {}, rows, scratch);
}

void LaunchExactSplit(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const RowSet& rows,
                      const SplitScratch& scratch) {
  SplitArgs split = MakeSplitArgs(
      args, PlanSplit(ctx.traits, shape, std::min(rows.count, scratch.rows), ReachOf(args, rows.max_length)), scratch);
  ForRows(split, rows, [&] {
    LaunchSplitExactScores(ctx, split);
    LaunchSplitSoftmax(ctx, split, true);
    LaunchSplitExactValues(ctx, split);
  });
}

}  // namespace stoch::cuda
