// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/attention/tiles.h"

#include <algorithm>
#include <optional>

#include "kernels/plan/divide_up.h"
#include "kernels/plan/linear/sc.h"
#include "kernels/plan/scratch_layout.h"

namespace stoch {
namespace {

constexpr int64_t kFloat = sizeof(float);

// 32-bit words of a stream of the tables: a multiple of two.
int StreamWords(const ScTraits& sc) { return (sc.stoc_len + 63) / 64 * 2; }

int64_t ScoreSharedBytes(const AttentionShape& shape) {
  const int64_t groups = shape.head_dim / 16;
  return groups * StreamWords(shape.qk) * kTileScoreRows * 4 * 16 + groups * 2 * kTileScoreRows * 4 * 4;
}

// Sets `plan` for tile_int8.cu. Its shared memory holds operands of 32 rows, codes of keys or values, and the scratch
// of Flush.
void PlanInt8Tiles(const AttentionShape& shape, ScTilePlan& plan) {
  constexpr int64_t kStage = int64_t{kTileTokensNarrow} * kTileInt8TokenBytes;
  constexpr int64_t kRowBytes = 32 * kTileInt8Dims;  // bytes of the rows of a warp in one stage
  constexpr int kValueStages = kTileInt8ValueWarps * 32 * 8 / (kTileTokensNarrow * kTileInt8Dims);
  plan.products = BitProducts::kInt8;
  plan.score_shared_bytes =
      shape.head_dim / kTileInt8Dims * kStage + kTileInt8ScoreWarps * (2 * kRowBytes + kTileFlipBytes);
  plan.value_shared_bytes =
      kValueStages * (kStage + int64_t{shape.head_dim} * kTileInt8Dims) + kTileInt8ValueWarps * kTileFlipBytes;
}

// The part of max_score_bytes that one device has if positions are dealt over several devices.
int64_t ScoreShare(const GpuTraits& gpu, const AttentionShape& shape) { return gpu.max_score_bytes / shape.stripes; }

// Bytes of the flags of `rows` rows of wide tiles (WideArgs::needed): which words of the values' streams the
// probabilities need.
int64_t NeededBytes(int64_t rows, int64_t stride) { return rows / kQueryTile * (stride / kWideValues) * kFloat; }

// Bytes of the lists of single codes of `rows` rows, and of the lengths of the lists.
int64_t ListBytes(int64_t rows) { return rows * (kWideListed + 1) * kFloat; }

// Bytes of the scores of one wide tile for the query heads of one KV head; if positions are dealt, also of its sums,
// flags and lists.
int64_t WideTileBytes(const AttentionShape& shape, int64_t stride) {
  const int64_t rows = shape.group() * kQueryTile;
  const int64_t bytes = rows * stride * 2;
  return ReplacesScores(shape) ? bytes + rows * shape.head_dim * kFloat + NeededBytes(rows, stride) + ListBytes(rows)
                               : bytes;
}

// Bytes of streams and tiles together, if positions are dealt (kWideSharedTiles).
int64_t WideShare(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan) {
  const int64_t stride = DivideUp(shape.longest, kKeyBlock) * kKeyBlock;
  const int64_t tile = WideTileBytes(shape, stride);
  const int64_t tiles = std::max<int64_t>(kWideLeastTiles, kWideSharedTiles / shape.stripes);
  const int64_t least = std::max(std::min(tiles * tile, gpu.max_score_bytes), tile);
  return std::max(ScoreShare(gpu, shape) / 4 * 9, WideStreamBytes(gpu, shape, plan, stride, 1) + least);
}

}  // namespace

std::optional<ScTilePlan> PlanScTiles(const GpuTraits& gpu, const AttentionShape& shape) {
  ScTilePlan plan;
  // With at most 128 cycles and 128 dimensions, ranks fit a byte, and the count of a score fits 16 bits.
  const auto fits = [](const ScTraits& sc) { return sc.has_streams && sc.stoc_len <= 128; };
  if (!fits(shape.qk) || !fits(shape.av) || (shape.head_dim != 64 && shape.head_dim != 128)) return std::nullopt;
  plan.score_shared_bytes = ScoreSharedBytes(shape);
  plan.value_shared_bytes = int64_t{kQueryTile} * shape.head_dim * 4;
  if (!gpu.has_binary_mma && shape.qk.has_int8_form && shape.av.has_int8_form) PlanInt8Tiles(shape, plan);
  if (std::max(plan.score_shared_bytes, plan.value_shared_bytes) > gpu.max_shared_bytes) return std::nullopt;
  return plan;
}

std::optional<WidePlan> PlanWideTiles(const GpuTraits& gpu, const AttentionShape& shape) {
  WidePlan plan;
  const auto fits = [](const ScTraits& sc) {
    return sc.has_streams && sc.direct_ranks && sc.stoc_len % 64 == 0 && sc.has_bytes &&
           sc.code == ScCode::kSignMagnitude;
  };
  if (!gpu.has_wgmma || !shape.swapped || shape.mode != AttentionMode::kPerToken || !fits(shape.qk) || !fits(shape.av))
    return std::nullopt;
  if (shape.head_dim != 64 && shape.head_dim != 128) return std::nullopt;
  const int group = shape.group();
  plan.parts = static_cast<int>(DivideUp(group, kWideSlots));
  plan.heads = static_cast<int>(DivideUp(group, plan.parts));
  plan.tiles = kWideSlots / plan.heads;
  // A stage holds 16 dimensions of kWideKeys keys: 16 bytes a key for each unit (StreamShape::units, with the two units
  // of the sign correction).
  plan.score_stage_bytes = int64_t{4 * (shape.qk.stoc_len / 32) + 2} * kWideKeys * 16;
  const int64_t value_unit = int64_t{shape.head_dim} * 16;
  plan.value_stage_bytes = kWideValueUnits * value_unit;
  plan.key_bytes = plan.score_stage_bytes * (shape.head_dim / 16) / kWideKeys;
  plan.first_bytes = kWideFirstUnits * value_unit / kWideValues;
  plan.other_bytes = WideOtherUnits(shape.av.stoc_len / 32) * value_unit / kWideValues;
  plan.code_bytes = shape.head_dim;
  const auto stages = [&](int64_t bytes, int64_t taken) {
    return static_cast<int>(
        std::clamp<int64_t>((gpu.max_shared_bytes - kWideStaticBytes - taken) / bytes, 0, kMaxWideStages));
  };
  // Shared memory of q k besides the stages: the ring's header, the codes of the queries, 16 bytes for each thread, and
  // the gains of rows.
  const int64_t gains = shape.lengths == AttentionLengths::kByTile ? kWideGainBytes : 0;
  const int64_t before_scores =
      kWideRingHeader + int64_t{kWideSlots} * (kQueryTile * shape.head_dim + 128 * 16) + gains;
  plan.score_stages = stages(plan.score_stage_bytes, before_scores);
  plan.value_stages = stages(plan.value_stage_bytes, kWideRingHeader);
  plan.score_shared_bytes = before_scores + plan.score_stages * plan.score_stage_bytes;
  plan.value_shared_bytes = kWideRingHeader + plan.value_stages * plan.value_stage_bytes;
  constexpr int kLeastStages = 3;
  if (std::min(plan.score_stages, plan.value_stages) < kLeastStages) return std::nullopt;
  return plan;
}

bool TakesBatch(const WidePlan& plan, int64_t sequences) { return plan.tiles == 1 || sequences == 1; }

bool SharesStreams(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions) {
  return ReplacesScores(shape) && positions * plan.position_bytes() > ScoreShare(gpu, shape);
}

int64_t WideStreamBytes(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions,
                        int64_t kv_heads) {
  const int64_t changing = SharesStreams(gpu, shape, plan, positions) ? std::max(plan.key_bytes, plan.other_bytes)
                                                                      : plan.key_bytes + plan.other_bytes;
  return kv_heads * positions * (changing + plan.first_bytes + plan.code_bytes);
}

int64_t WideKvHeads(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions,
                    int64_t stride) {
  const int64_t share = ScoreShare(gpu, shape);
  const int64_t heads =
      std::min(share / WideStreamBytes(gpu, shape, plan, positions, 1), share / WideTileBytes(shape, stride));
  return std::clamp<int64_t>(heads, 1, shape.num_kv_heads);
}

int64_t WideTiles(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions,
                  int64_t kv_heads, int64_t round_heads, int64_t stride, int64_t tiles) {
  const int64_t streams = WideStreamBytes(gpu, shape, plan, positions, kv_heads);
  const int64_t bytes = ReplacesScores(shape) ? WideShare(gpu, shape, plan) - streams : gpu.max_score_bytes;
  const int64_t most = std::clamp<int64_t>(bytes / (round_heads * WideTileBytes(shape, stride)), 1, tiles);
  return ReplacesScores(shape) ? DivideUp(tiles, DivideUp(tiles, most)) : most;
}

int64_t WideRange(const GpuTraits& gpu, int64_t blocks, int64_t length, int64_t start) {
  int64_t best = 0;
  double best_share = 0;
  for (int64_t ranges = 1;; ++ranges) {
    const int64_t range = DivideUp(DivideUp(length, ranges), kKeyBlock) * kKeyBlock;
    if (best > 0 && range < kMinWideRange) break;
    const int64_t waves = DivideUp(blocks * DivideUp(length, range), gpu.sm_count);
    const double share =
        static_cast<double>(blocks * length) / static_cast<double>(waves * gpu.sm_count * (range + start));
    if (share > best_share * 1.02) {
      best = range;
      best_share = share;
    }
  }
  return best;
}

WideGroupPlan PlanWideGroup(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t tiles,
                            int64_t kv_heads, int64_t stride, int64_t seen) {
  const int64_t blocks = DivideUp(tiles, plan.tiles) * kv_heads * plan.parts;
  WideGroupPlan group;
  group.score_range = WideRange(gpu, blocks, seen, kWideScoreStart);
  group.value_range = WideRange(gpu, blocks, seen, kWideValueStart);
  if (stride >= gpu.list_from && shape.lengths == AttentionLengths::kUniform) {
    group.sums = WideSums::kLists;
  } else if (group.value_range < seen) {
    group.sums = WideSums::kMemory;
  }
  return group;
}

TileGroup CutTiles(const GpuTraits& gpu, const AttentionShape& shape, int64_t stride, int64_t tiles) {
  const int64_t head_bytes = kQueryTile * stride * 2;
  const int64_t tile_bytes = head_bytes * shape.num_heads;
  const int64_t room = ScoreShare(gpu, shape);
  if (tile_bytes <= room) {
    const int64_t most = std::clamp<int64_t>(room / tile_bytes, 1, tiles);
    if (most == tiles) return {tiles, shape.num_heads};
    // One block runs per SM. Take fewer tiles only if that raises the share of busy SMs by more than 2 %.
    const auto share = [&](int64_t count) {
      const int64_t blocks = count * shape.num_heads;
      return static_cast<double>(blocks) / static_cast<double>(DivideUp(blocks, gpu.sm_count) * gpu.sm_count);
    };
    int64_t best = most;
    for (int64_t count = most - 1; count > most / 2; --count) {
      if (share(count) > share(best) * 1.02) best = count;
    }
    return {best, shape.num_heads};
  }
  const int64_t group = shape.group();
  return {1, std::max<int64_t>(room / (head_bytes * group), 1) * group};
}

int64_t TileScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits) {
  // Packed keys and values: a word of four codes takes eight bytes.
  const int64_t stride = DivideUp(limits.max_context, kKeyBlock) * kKeyBlock;
  const int64_t sequences = std::min(limits.max_sequences, limits.max_rows / kLongSequenceRows);
  const int64_t positions = std::min(sequences * stride, std::max<int64_t>(gpu.max_packed_positions, stride));
  const int64_t packed = positions * shape.num_kv_heads;
  const int64_t packed_bytes =
      2 * ScratchLayout::Aligned(packed * shape.head_dim * 2) + 2 * ScratchLayout::Aligned(packed * kFloat);
  // One more tile for every sequence, whose rows may not fill its last tile.
  const int64_t tiles = limits.max_rows / kQueryTile + sequences;
  // With a shorter stride a group has more tiles, but no more bytes of scores. A group may then hold all tiles, so
  // scales are counted for all.
  const int64_t head_bytes = kQueryTile * stride * 2;
  const int64_t score_bytes =
      std::min(tiles * shape.num_heads * head_bytes, std::max(ScoreShare(gpu, shape), shape.group() * head_bytes));
  return packed_bytes + 2 * ScratchLayout::Aligned(score_bytes) +
         ScratchLayout::Aligned(tiles * shape.num_heads * kQueryTile * kFloat);
}

int64_t WideScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits) {
  const std::optional<WidePlan> supported = PlanWideTiles(gpu, shape);
  if (!supported) return 0;
  const WidePlan& plan = *supported;
  const int64_t stride = DivideUp(limits.max_context, kKeyBlock) * kKeyBlock;
  const int64_t sequences = std::min(limits.max_sequences, limits.max_rows / kLongSequenceRows);
  const int64_t positions = std::min(sequences * stride, std::max<int64_t>(gpu.max_packed_positions, stride));
  const int64_t head_streams = WideStreamBytes(gpu, shape, plan, positions, 1);
  // For shorter sequences the streams of K and V do not share memory (SharesStreams) and take at most the device's
  // share.
  const int64_t streams =
      std::max(head_streams, std::min(ScoreShare(gpu, shape), positions * plan.position_bytes() * shape.num_kv_heads));
  const int64_t rows = (limits.max_rows / kQueryTile + sequences) * shape.num_heads * kQueryTile;
  const int64_t scales = 2 * ScratchLayout::Aligned(positions * shape.num_kv_heads * kFloat) +
                         ScratchLayout::Aligned(shape.num_kv_heads * kFloat) +
                         2 * ScratchLayout::Aligned(rows * kFloat) + 16 * ScratchLayout::kAlignment;
  if (ReplacesScores(shape)) {
    const int64_t replaced = ScratchLayout::Aligned(positions * shape.num_kv_heads / kWideKeys);
    const int64_t tile_bytes =
        ScratchLayout::Aligned(rows * stride * 2) + ScratchLayout::Aligned(rows * shape.head_dim * kFloat) +
        ScratchLayout::Aligned(NeededBytes(rows, stride)) + ScratchLayout::Aligned(ListBytes(rows));
    return ScratchLayout::Aligned(streams) + scales + replaced +
           std::min(tile_bytes, WideShare(gpu, shape, plan) - streams);
  }
  const int64_t group_rows = shape.group() * kQueryTile;
  const int64_t score_bytes = std::min(rows * stride * 2, std::max(gpu.max_score_bytes, group_rows * stride * 2));
  // Sums go to memory only if there are several ranges, so only for rows with more positions than the shortest range.
  const auto rows_from = [&](int64_t least) {
    return std::min(rows, std::max(gpu.max_score_bytes / (2 * least), group_rows));
  };
  return ScratchLayout::Aligned(streams) + ScratchLayout::Aligned(streams / 2) / kKeyBlock + scales +
         ScratchLayout::Aligned(score_bytes) + ScratchLayout::Aligned(score_bytes / 2) +
         ScratchLayout::Aligned(NeededBytes(kQueryTile, score_bytes / 2 / kQueryTile)) +
         ScratchLayout::Aligned(rows_from(kMinWideRange) * shape.head_dim * kFloat) +
         ScratchLayout::Aligned(ListBytes(rows_from(gpu.list_from)));
}

}  // namespace stoch
