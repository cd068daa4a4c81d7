// SPDX-License-Identifier: Apache-2.0
// SC attention of long sequences by mma.sync: runs groups of tiles through scores, softmax and p v.
#include <algorithm>

#include "kernels/cuda/attention/tile.h"
#include "kernels/cuda/base/cuda_check.h"

namespace stoch::cuda {
namespace {

// Positions that a tile sees, rounded up to kKeyBlock.
int64_t PaddedLength(const QueryTile& tile) { return (int64_t{tile.length()} + kKeyBlock - 1) / kKeyBlock * kKeyBlock; }

// Returns `args` for query heads [first, first + heads), with all per-head pointers moved to head `first`. Requires:
// `first` is a multiple of attention.group; num_tiles is 1 or `heads` is all heads, since kernels find the scratch of
// (tile, head) at index tile * num_heads + head.
TileArgs HeadsOf(const TileArgs& args, int64_t first, int64_t heads) {
  const int64_t head_dim = args.attention.kv.head_dim;
  const int64_t kv_first = first / args.attention.group;
  TileArgs part = args;
  part.heads = static_cast<int32_t>(heads);
  part.attention.out += first * head_dim;
  part.q.words += first * head_dim / 4;
  part.q.scales += first;
  if (args.window.p_heads != nullptr) part.window.p_heads += first;
  if (args.window.v_channels != nullptr) part.window.v_channels += kv_first * head_dim;
  part.kv.k += kv_first * args.kv.positions * head_dim / 4;
  part.kv.v += kv_first * args.kv.positions * head_dim / 4;
  part.kv.k_scales += kv_first * args.kv.positions;
  part.kv.v_scales += kv_first * args.kv.positions;
  return part;
}

// Runs all tiles of a batch, group by group. Requires: the batch's keys and values are packed in args.kv. head_max:
// only find the largest probability of every head, without outputs.
void RunTiles(DeviceContext& ctx, TileArgs args, const AttentionShape& shape, const ScTilePlan& plan,
              const TileSet& tiles, const TileBatch& batch, bool head_max) {
  const int64_t end = int64_t{batch.first_tile} + batch.num_tiles;
  const bool is_int8 = plan.products == BitProducts::kInt8;
  for (int64_t first = batch.first_tile; first < end;) {
    const int64_t stride = TileStride(PaddedLength(tiles.host[static_cast<size_t>(first)]), args.attention.window);
    const TileGroup group = CutTiles(ctx.traits, shape, stride, end - first);
    args.tiles = tiles.device + first;
    args.num_tiles = static_cast<int32_t>(group.tiles);
    args.scratch.stride = stride;
    for (int64_t head = 0; head < shape.num_heads; head += group.heads) {
      const int64_t heads = std::min<int64_t>(group.heads, shape.num_heads - head);
      const int64_t rows = group.tiles * heads * kQueryTile;
      Scratch scratch(ctx.workspace);
      TileArgs part = HeadsOf(args, head, heads);
      part.scratch.scores = scratch.Take<int16_t>(rows * stride);
      part.scratch.p = scratch.Take<PackedWord>(rows * stride / 4);
      part.scratch.p_scales = scratch.Take<float>(rows);
      is_int8 ? LaunchTileScoresInt8(ctx, plan, part) : LaunchTileScores(ctx, plan, part);
      LaunchTileSoftmax(ctx, part, shape.mode, head_max);
      if (head_max) continue;
      is_int8 ? LaunchTileValuesInt8(ctx, plan, part, shape.mode) : LaunchTileValues(ctx, plan, part, shape.mode);
    }
    first += group.tiles;
  }
}

}  // namespace

void LaunchScTiles(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTilePlan& plan,
                   const ScOperands& operands, const TileSet& tiles, const TileBatch& batch) {
  Scratch scratch(ctx.workspace);
  TileArgs tile_args;
  tile_args.attention = args;
  tile_args.qk = operands.qk;
  tile_args.av = operands.av;
  tile_args.q = operands.q;
  tile_args.window = operands.window;
  const int64_t packed = int64_t{batch.positions} * args.kv.num_kv_heads;
  tile_args.kv.positions = batch.positions;
  tile_args.kv.k = scratch.Take<PackedWord>(packed * args.kv.head_dim / 4);
  tile_args.kv.v = scratch.Take<PackedWord>(packed * args.kv.head_dim / 4);
  tile_args.kv.k_scales = scratch.Take<float>(packed);
  tile_args.kv.v_scales = scratch.Take<float>(packed);
  LaunchPackKv(ctx, tile_args, batch);
  // kPerHead has one scale for the probabilities of all rows of a head: a first pass over the tiles finds the largest
  // probability, a second pass computes outputs.
  if (shape.mode == AttentionMode::kPerHead) RunTiles(ctx, tile_args, shape, plan, tiles, batch, true);
  RunTiles(ctx, tile_args, shape, plan, tiles, batch, false);
}

}  // namespace stoch::cuda
