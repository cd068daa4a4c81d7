// SPDX-License-Identifier: Apache-2.0
// SC attention of long sequences on wgmma: runs rounds of KV heads, and in each round groups of tiles.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/attention/hopper/wide.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/plan/divide_up.h"

namespace stoch::cuda {
namespace {

// Positions that a tile sees, rounded up to kKeyBlock.
int64_t PaddedLength(const QueryTile& tile) { return (int64_t{tile.length()} + kKeyBlock - 1) / kKeyBlock * kKeyBlock; }

// Runs q k, softmax, p v and outputs for one group of tiles of a round.
void RunGroup(DeviceContext& ctx, const AttentionShape& shape, const WidePlan& plan, WideArgs args,
              const TileBatch& batch) {
  const int64_t rows = int64_t{args.num_tiles} * args.kv_heads * args.attention.group * kQueryTile;
  // Upper bound of the positions that the tiles of one block see together. The tiles of a block are neighbours in a
  // sequence, and their FirstKept differ by at most kRowLanes from one tile to the next.
  const int64_t seen = std::min(args.stride + (plan.tiles - 1) * int64_t{kRowLanes}, args.longest);
  const WideGroupPlan group = PlanWideGroup(ctx.traits, shape, plan, args.num_tiles, args.kv_heads, args.stride, seen);
  const bool lists = group.sums == WideSums::kLists;
  const bool sums = group.sums != WideSums::kOutputs;
  Scratch scratch(ctx.workspace);
  const bool replaces = ReplacesScores(shape);
  STOCH_CHECK(!replaces || !args.is_mixed);  // all rows have one stream length if positions are dealt
  args.scores = scratch.Take<int16_t>(rows * args.stride);
  args.codes = replaces ? reinterpret_cast<uint8_t*>(args.scores) : scratch.Take<uint8_t>(rows * args.stride);
  args.code_stride = replaces ? args.stride * int64_t{sizeof(int16_t)} : args.stride;
  args.row_max = scratch.Take<uint32_t>(rows);
  args.p_scales = scratch.Take<float>(rows);
  const int64_t needed = rows / kQueryTile * (args.stride / kWideValues);
  args.needed = scratch.Take<uint32_t>(needed);
  const int64_t sum_count = sums ? rows * args.attention.kv.head_dim : 0;
  args.sums = sums ? scratch.Take<int32_t>(sum_count) : nullptr;
  args.lists = lists ? scratch.Take<uint32_t>(rows * kWideListed) : nullptr;
  args.listed = lists ? scratch.Take<int32_t>(rows) : nullptr;
  const auto clear = [&](void* at, int64_t words) {
    STOCH_CUDA(cudaMemsetAsync(at, 0, static_cast<size_t>(words) * sizeof(uint32_t), ctx.stream));
  };
  clear(args.row_max, rows);
  clear(args.needed, needed);
  args.range = static_cast<int32_t>(group.score_range);
  LaunchWideScores(ctx, plan, args, DivideUp(seen, group.score_range));
  LaunchWideSoftmax(ctx, args);
  if (args.replaced != nullptr) LaunchOtherWords(ctx, args, batch);
  if (sums) clear(args.sums, sum_count);
  args.range = static_cast<int32_t>(group.value_range);
  LaunchWideValues(ctx, plan, args, DivideUp(seen, group.value_range));
  if (sums) LaunchWideOutputs(ctx, args);
}

// Runs a batch: rounds of KV heads, and in each round groups of tiles. lengths: null if all rows have one stream
// length.
void Run(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const WidePlan& plan,
         const ScOperands& operands, const WideLengths* lengths, const TileSet& tiles, const TileBatch& batch) {
  const auto end = static_cast<size_t>(batch.first_tile + batch.num_tiles);
  const int64_t longest = TileStride(PaddedLength(tiles.host[static_cast<size_t>(batch.first_tile)]), args.window);
  const int64_t kv_heads = WideKvHeads(ctx.traits, shape, plan, batch.positions, longest);
  const int64_t packed = batch.positions * kv_heads;
  const bool shares = SharesStreams(ctx.traits, shape, plan, batch.positions);
  Scratch scratch(ctx.workspace);
  WideArgs round;
  round.attention = args;
  round.qk = operands.qk;
  round.av = operands.av;
  round.q = operands.q;
  round.is_mixed = lengths != nullptr;
  if (round.is_mixed) round.lengths = *lengths;
  round.heads = plan.heads;
  round.block_tiles = plan.tiles;
  round.parts = plan.parts;
  round.positions = batch.positions;
  round.k_streams =
      scratch.Take<uint8_t>(packed * (shares ? std::max(plan.key_bytes, plan.other_bytes) : plan.key_bytes));
  round.v_first = scratch.Take<uint8_t>(packed * plan.first_bytes);
  round.v_others = shares ? round.k_streams : scratch.Take<uint8_t>(packed * plan.other_bytes);
  round.replaced = shares ? scratch.Take<uint8_t>(packed / kWideKeys) : nullptr;
  round.v_codes = scratch.Take<uint8_t>(packed * shape.head_dim);
  round.k_scales = scratch.Take<float>(packed);
  round.v_scales = scratch.Take<float>(packed);
  round.v_max = scratch.Take<uint32_t>(kv_heads);
  for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; kv_head += kv_heads) {
    round.first_kv_head = static_cast<int32_t>(kv_head);
    round.kv_heads = static_cast<int32_t>(std::min<int64_t>(kv_heads, shape.num_kv_heads - kv_head));
    LaunchWideStreams(ctx, round, batch);
    for (auto first = static_cast<size_t>(batch.first_tile); first < end;) {
      WideArgs group = round;
      group.longest = PaddedLength(tiles.host[first]);
      group.stride = TileStride(group.longest, args.window);
      const int64_t count = WideTiles(ctx.traits, shape, plan, batch.positions, kv_heads, round.kv_heads, group.stride,
                                      static_cast<int64_t>(end - first));
      group.tiles = tiles.device + first;
      group.num_tiles = static_cast<int32_t>(count);
      RunGroup(ctx, shape, plan, group, batch);
      first += static_cast<size_t>(group.num_tiles);
      if (round.replaced != nullptr && first < end) LaunchReplacedKeys(ctx, round, batch);
    }
  }
}

}  // namespace

void LaunchScWide(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const WidePlan& plan,
                  const ScOperands& operands, const TileSet& tiles, const TileBatch& batch) {
  Run(ctx, args, shape, plan, operands, nullptr, tiles, batch);
}

void LaunchMixedWide(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const WidePlan& plan,
                     const ScOperands& operands, const WideLengths& lengths, const TileSet& tiles,
                     const TileBatch& batch) {
  Run(ctx, args, shape, plan, operands, &lengths, tiles, batch);
}

}  // namespace stoch::cuda
