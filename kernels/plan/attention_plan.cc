// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/attention_plan.h"

#include <algorithm>

#include "kernels/context_bucket.h"
#include "kernels/math/reduce.h"
#include "kernels/plan/divide_up.h"
#include "kernels/sc/sc_swap.h"

namespace stoch {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kAlignment = 256;  // of what is taken from the workspace

constexpr int kRowTileTokens = 128;  // positions that a block of a cluster takes in turn
constexpr int64_t kMaxTableBytes = 160 << 10;
constexpr int64_t kMaxSpillFloats = int64_t{64} << 20;

int64_t Aligned(int64_t bytes) { return DivideUp(bytes, kAlignment) * kAlignment; }

// 32-bit words of a stream of the tables: a multiple of two.
int StreamWords(const ScTraits& sc) { return (sc.stoc_len + 63) / 64 * 2; }

int64_t ScoreSharedBytes(const AttentionShape& shape, int rows) {
  const int64_t groups = shape.head_dim / 16;
  return groups * StreamWords(shape.qk) * rows * 4 * 16 + groups * 2 * rows * 4 * 4;
}

// Codes and scales of the queries, and what belongs to a whole pass where scales do.
int64_t QueryBytes(const AttentionShape& shape, const AttentionLimits& limits) {
  const int64_t heads = limits.max_rows * shape.num_heads;
  int64_t bytes = Aligned(heads * shape.head_dim) + Aligned(heads * kFloat);
  if (shape.mode == AttentionMode::kPerHead || shape.mode == AttentionMode::kPerRow) {
    const int64_t q_heads = limits.max_sequences * shape.num_heads;
    const int64_t kv_heads = limits.max_sequences * shape.num_kv_heads;
    bytes += Aligned(kv_heads * shape.head_dim * kFloat) + Aligned(q_heads * kFloat) +
             Aligned((q_heads + kv_heads + kv_heads * shape.head_dim) * kFloat);
  }
  return bytes;
}

// Query heads that read one KV head.
int64_t GroupOf(const AttentionShape& shape) { return shape.num_heads / std::max(1, shape.num_kv_heads); }

// What one of the devices that positions are dealt over has of max_score_bytes.
int64_t ScoreShare(const GpuTraits& gpu, const AttentionShape& shape) { return gpu.max_score_bytes / shape.stripes; }

// Which words of streams of values the probabilities of so many rows of wide tiles need.
int64_t NeededBytes(int64_t rows, int64_t stride) { return rows / kQueryTile * (stride / kWideValues) * kFloat; }

// Single codes that so many rows list.
int64_t ListBytes(int64_t rows) { return rows * (kWideListed + 1) * kFloat; }

// Of a wide tile and the query heads of one KV head: scores, and where positions are dealt all that comes with them.
int64_t WideTileBytes(const AttentionShape& shape, int64_t stride) {
  const int64_t rows = GroupOf(shape) * kQueryTile;
  const int64_t bytes = rows * stride * 2;
  return ReplacesScores(shape) ? bytes + rows * shape.head_dim * kFloat + NeededBytes(rows, stride) + ListBytes(rows)
                               : bytes;
}

// Streams and tiles together, where positions are dealt.
int64_t WideShare(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan) {
  const int64_t stride = DivideUp(shape.longest, kKeyBlock) * kKeyBlock;
  const int64_t tile = WideTileBytes(shape, stride);
  const int64_t tiles = std::max<int64_t>(kWideLeastTiles, kWideSharedTiles / shape.stripes);
  const int64_t least = std::max(std::min(tiles * tile, gpu.max_score_bytes), tile);
  return std::max(ScoreShare(gpu, shape) / 4 * 9, WideStreamBytes(gpu, shape, plan, stride, 1) + least);
}

int64_t TileBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits) {
  // Packed keys and values: a word of four codes takes eight bytes.
  const int64_t stride = DivideUp(limits.max_context, kKeyBlock) * kKeyBlock;
  const int64_t sequences = std::min(limits.max_sequences, limits.max_rows / kLongSequenceRows);
  const int64_t positions = std::min(sequences * stride, std::max<int64_t>(gpu.max_packed_positions, stride));
  const int64_t packed = positions * shape.num_kv_heads;
  const int64_t packed_bytes = 2 * Aligned(packed * shape.head_dim * 2) + 2 * Aligned(packed * kFloat);
  // A tile more for every sequence whose rows do not fill one.
  const int64_t tiles = limits.max_rows / kQueryTile + sequences;
  // Shorter strides hold more tiles, at most the same bytes; but of the last group's scales there may be more.
  const int64_t head_bytes = kQueryTile * stride * 2;
  const int64_t score_bytes =
      std::min(tiles * shape.num_heads * head_bytes, std::max(ScoreShare(gpu, shape), GroupOf(shape) * head_bytes));
  return packed_bytes + 2 * Aligned(score_bytes) + Aligned(tiles * shape.num_heads * kQueryTile * kFloat);
}

int64_t WideBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits) {
  const WidePlan plan = PlanWideTiles(gpu, shape);
  if (!plan.supported) return 0;
  const int64_t stride = DivideUp(limits.max_context, kKeyBlock) * kKeyBlock;
  const int64_t sequences = std::min(limits.max_sequences, limits.max_rows / kLongSequenceRows);
  const int64_t positions = std::min(sequences * stride, std::max<int64_t>(gpu.max_packed_positions, stride));
  const int64_t head_streams = WideStreamBytes(gpu, shape, plan, positions, 1);
  // Shorter sequences have streams apart, of no more than the share.
  const int64_t streams =
      std::max(head_streams, std::min(ScoreShare(gpu, shape), positions * plan.position_bytes() * shape.num_kv_heads));
  const int64_t rows = (limits.max_rows / kQueryTile + sequences) * shape.num_heads * kQueryTile;
  const int64_t scales = 2 * Aligned(positions * shape.num_kv_heads * kFloat) + Aligned(shape.num_kv_heads * kFloat) +
                         2 * Aligned(rows * kFloat) + 16 * kAlignment;
  if (ReplacesScores(shape)) {
    const int64_t replaced = Aligned(positions * shape.num_kv_heads / kWideKeys);
    const int64_t tile_bytes = Aligned(rows * stride * 2) + Aligned(rows * shape.head_dim * kFloat) +
                               Aligned(NeededBytes(rows, stride)) + Aligned(ListBytes(rows));
    return Aligned(streams) + scales + replaced + std::min(tile_bytes, WideShare(gpu, shape, plan) - streams);
  }
  const int64_t group_rows = GroupOf(shape) * kQueryTile;
  const int64_t score_bytes = std::min(rows * stride * 2, std::max(gpu.max_score_bytes, group_rows * stride * 2));
  // Sums are left where there are several ranges, so of rows with more positions than the shortest range.
  const auto rows_from = [&](int64_t least) {
    return std::min(rows, std::max(gpu.max_score_bytes / (2 * least), group_rows));
  };
  return Aligned(streams) + Aligned(streams / 2) / kKeyBlock + scales + Aligned(score_bytes) +
         Aligned(score_bytes / 2) + Aligned(NeededBytes(kQueryTile, score_bytes / 2 / kQueryTile)) +
         Aligned(rows_from(kMinWideRange) * shape.head_dim * kFloat) + Aligned(ListBytes(rows_from(gpu.list_from)));
}

int64_t SpillBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits) {
  const SpillPlan spill = PlanSpill(gpu, shape, limits);
  if (spill.stride == 0) return 0;
  const int64_t heads = spill.rows_at_once * shape.num_heads;
  int64_t bytes = Aligned(spill.stride * heads * kFloat);
  if (spill.parts == 0) return bytes;
  bytes += 2 * Aligned(heads * spill.parts * kFloat) + Aligned(heads * kSplitUnit * kFloat);
  const int64_t sums = shape.mode == AttentionMode::kExact ? heads * kDotLanes * shape.head_dim
                                                           : SplitSums(gpu, shape, spill.rows_at_once);
  return bytes + Aligned(sums * kFloat) + Aligned(heads * kFloat);
}

}  // namespace

std::string_view AttentionKernelName(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::kScRows: return "rows";
    case AttentionKernel::kScSplit: return "split";
    case AttentionKernel::kScTiles: return "tiles";
    case AttentionKernel::kScWide: return "wide-tiles";
    case AttentionKernel::kExactRows: return "exact-rows";
    case AttentionKernel::kExactSplit: return "exact-split";
    case AttentionKernel::kHalfRows: return "half-rows";
    case AttentionKernel::kHalfTiles: return "half-tiles";
  }
  return "?";
}

bool HasSwappedStreams(const KvCacheSpec& spec) {
  if (spec.mode != AttentionMode::kPerToken || !spec.layers.empty()) return false;
  return CanSwap(*spec.qk) && (spec.av == spec.qk || CanSwap(*spec.av));
}

AttentionShape MakeAttentionShape(const KvCacheSpec& spec, int num_heads) {
  AttentionShape shape;
  shape.mode = spec.mode;
  shape.precision = spec.precision;
  shape.num_heads = num_heads;
  shape.num_kv_heads = spec.num_kv_heads;
  shape.head_dim = spec.head_dim;
  if (spec.qk != nullptr) shape.qk = MakeScTraits(*spec.qk);
  if (spec.av != nullptr) shape.av = spec.av == spec.qk ? shape.qk : MakeScTraits(*spec.av);
  shape.swapped = HasSwappedStreams(spec);
  shape.stripes = spec.stripes;
  return shape;
}

namespace {

// Whether the contexts of so many rows are worth cutting over the GPU. Measured with 32 heads of 8B on an H200: one
// kernel beats the row kernel from a few hundred positions on; clusters with many rows, which fill the GPU themselves,
// only beyond what a row's block keeps in shared memory with ease; four kernels cost more to launch.
bool IsSplit(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length) {
  const SplitPlan plan = PlanSplit(gpu, shape, rows, max_length);
  if (!plan.supported) return false;
  if (gpu.split_from > 0) return max_length >= gpu.split_from;
  constexpr int64_t kManyHeads = 256;  // eight rows of 32 heads
  const bool many = rows * shape.num_heads >= kManyHeads;
  return max_length > (plan.is_resident || (plan.is_fused && !many) ? kShortContext : kLongContext);
}

}  // namespace

AttentionPlan PlanAttention(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length,
                            bool recording) {
  AttentionPlan plan;
  const bool few = rows <= kFreshRows;
  if (shape.mode != AttentionMode::kExact) {
    const bool split = IsSplit(gpu, shape, rows, max_length);
    plan.short_rows = plan.long_rows = split ? AttentionKernel::kScSplit : AttentionKernel::kScRows;
    plan.is_fresh = few && !split && shape.mode == AttentionMode::kPerToken;
    if (!recording && PlanScTiles(gpu, shape).supported) plan.long_rows = AttentionKernel::kScTiles;
    const bool wide = PlanWideTiles(gpu, shape).supported;
    if (!recording && wide) plan.long_rows = AttentionKernel::kScWide;
  } else if (shape.precision == Precision::kFp32) {
    plan.short_rows =
        IsSplit(gpu, shape, rows, max_length) ? AttentionKernel::kExactSplit : AttentionKernel::kExactRows;
    plan.long_rows = plan.short_rows;
  } else {
    plan.short_rows = plan.long_rows = AttentionKernel::kHalfRows;
    plan.is_fresh = few;
    if (!recording && (shape.head_dim == 64 || shape.head_dim == 128)) plan.long_rows = AttentionKernel::kHalfTiles;
  }
  if (plan.is_fresh) plan.long_rows = plan.short_rows;
  return plan;
}

ScRowPlan PlanScRows(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length) {
  ScRowPlan plan;
  const int64_t row_heads = rows * shape.num_heads;
  // Enough blocks to fill the GPU, no more than the context has tiles for.
  if (gpu.has_clusters && max_length > kScRowSoloTokens) {
    while (plan.cluster < kMaxAttentionCluster && row_heads * plan.cluster < gpu.sm_count &&
           plan.cluster * kRowTileTokens < max_length) {
      plan.cluster *= 2;
    }
  }
  if (shape.mode == AttentionMode::kPerToken) {
    const int64_t blocks = row_heads * plan.cluster;
    const int crowded = shape.head_dim <= 128 ? 4 : 2;
    plan.blocks_per_sm = blocks > 2 * gpu.sm_count ? crowded : blocks > gpu.sm_count ? 2 : 1;
  }
  plan.shared_scores = static_cast<int>(std::min<int64_t>((max_length + 255) / 256 * 256, kMaxSharedScores));
  plan.shared_bytes = kScRowFixedBytes + 4 * (int64_t{plan.cluster} * shape.head_dim + plan.shared_scores);
  plan.static_bytes = kScRowStaticBytes;
  return plan;
}

HalfRowPlan PlanHalfRows(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length) {
  constexpr int kMinTokens = 64;   // of a block
  constexpr int kBlocksPerSm = 2;  // that the kernel is compiled for
  constexpr int kSmallCluster = 2;
  HalfRowPlan plan;
  if (max_length <= kHalfRowSoloTokens) return plan;
  const int64_t blocks = rows * shape.num_kv_heads;
  while (gpu.has_clusters && plan.cluster < kMaxAttentionCluster && blocks * plan.cluster < gpu.sm_count &&
         plan.cluster * kMinTokens < max_length) {
    plan.cluster *= 2;
  }
  while (blocks * plan.cluster * plan.gangs < gpu.sm_count &&
         plan.cluster * plan.gangs * 2 * kMinTokens <= max_length) {
    plan.gangs *= 2;
  }
  // A second block an SM where that needs no more than the gangs there are.
  if (plan.gangs > 1 && blocks * plan.cluster * plan.gangs * 2 <= kBlocksPerSm * gpu.sm_count &&
      plan.cluster * plan.gangs * 2 * kMinTokens <= max_length) {
    plan.gangs *= 2;
  }
  // Two blocks an SM by clusters of two, which find room wherever two blocks have: of 64 clusters of four some waited for
  // others to end, so that 8192 positions took 20 % longer and 32768 30 %.
  if (plan.cluster > kSmallCluster && blocks * plan.cluster * plan.gangs > gpu.sm_count) {
    plan.gangs *= plan.cluster / kSmallCluster;
    plan.cluster = kSmallCluster;
  }
  return plan;
}

int64_t HalfRowRecordFloats(const GpuTraits& gpu, const AttentionShape& shape) {
  // Gangs of all rows: fewer than twice the SMs for each query head of a KV head.
  const int64_t group = DivideUp(shape.num_heads, std::max(1, shape.num_kv_heads));
  return 2 * gpu.sm_count * group * (shape.head_dim + 2);
}

ScTilePlan PlanScTiles(const GpuTraits& gpu, const AttentionShape& shape) {
  ScTilePlan plan;
  // 128 cycles and 128 dimensions: ranks fit a byte, and a score's count 16 bits.
  const auto fits = [](const ScTraits& sc) { return sc.has_streams && sc.stoc_len <= 128; };
  if (!fits(shape.qk) || !fits(shape.av) || (shape.head_dim != 64 && shape.head_dim != 128)) return plan;
  for (const int rows : {kQueryTile, kQueryTile / 2}) {
    plan.score_rows = rows;
    plan.score_shared_bytes = ScoreSharedBytes(shape, rows);
    if (plan.score_shared_bytes <= gpu.max_shared_bytes) break;
  }
  const int64_t table = int64_t{shape.av.masks} * shape.av.levels * StreamWords(shape.av) * 4;
  const int64_t sums = int64_t{kQueryTile} * shape.head_dim * 4;
  plan.table_in_shared = table <= std::min(kMaxTableBytes, gpu.max_shared_bytes);
  plan.value_shared_bytes = plan.table_in_shared ? std::max(table, sums) : sums;
  const int64_t kept = gpu.max_shared_bytes / (kSoftmaxWarps * kFloat) / kRowTileTokens * kRowTileTokens;
  plan.max_kept_floats = static_cast<int>(std::min<int64_t>(kept, kMaxSharedScores));
  plan.supported = plan.score_shared_bytes <= gpu.max_shared_bytes && plan.value_shared_bytes <= gpu.max_shared_bytes;
  return plan;
}

WidePlan PlanWideTiles(const GpuTraits& gpu, const AttentionShape& shape) {
  WidePlan plan;
  const auto fits = [](const ScTraits& sc) {
    return sc.has_streams && sc.direct_ranks && sc.stoc_len % 64 == 0 && sc.has_bytes &&
           sc.code == ScCode::kSignMagnitude;
  };
  if (!gpu.has_wgmma || !shape.swapped || shape.mode != AttentionMode::kPerToken || !fits(shape.qk) || !fits(shape.av))
    return plan;
  if (shape.head_dim != 64 && shape.head_dim != 128) return plan;
  const int group = shape.num_heads / std::max(1, shape.num_kv_heads);
  plan.parts = static_cast<int>(DivideUp(group, kWideSlots));
  plan.heads = static_cast<int>(DivideUp(group, plan.parts));
  plan.tiles = kWideSlots / plan.heads;
  // A unit of 16 bytes a column for each word of four dimensions, and two of the sign correction.
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
  // Next to the ring of q k: the codes of the queries, and 16 bytes that a thread keeps.
  const int64_t before_scores = kWideRingHeader + int64_t{kWideSlots} * (kQueryTile * shape.head_dim + 128 * 16);
  plan.score_stages = stages(plan.score_stage_bytes, before_scores);
  plan.value_stages = stages(plan.value_stage_bytes, kWideRingHeader);
  plan.score_shared_bytes = before_scores + plan.score_stages * plan.score_stage_bytes;
  plan.value_shared_bytes = kWideRingHeader + plan.value_stages * plan.value_stage_bytes;
  plan.supported = plan.score_stages >= 3 && plan.value_stages >= 3;
  return plan;
}

bool TakesBatch(const WidePlan& plan, int64_t sequences) {
  return plan.supported && (plan.tiles == 1 || sequences == 1);
}

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

TileGroup CutTiles(const GpuTraits& gpu, const AttentionShape& shape, int64_t stride, int64_t tiles) {
  const int64_t head_bytes = kQueryTile * stride * 2;
  const int64_t tile_bytes = head_bytes * shape.num_heads;
  const int64_t room = ScoreShare(gpu, shape);
  if (tile_bytes <= room) {
    const int64_t most = std::clamp<int64_t>(room / tile_bytes, 1, tiles);
    if (most == tiles) return {tiles, shape.num_heads};
    // A block takes an SM: the most tiles that leave the fewest SMs without one.
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
  const int64_t group = GroupOf(shape);
  return {1, std::max<int64_t>(room / (head_bytes * group), 1) * group};
}

int64_t SplitSums(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows) {
  return std::max<int64_t>(rows * shape.num_heads, int64_t{gpu.sm_count} * kSplitScHeads) * shape.head_dim;
}

SpillPlan PlanSpill(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits) {
  SpillPlan plan;
  plan.rows_at_once = 32768;  // gridDim is limited to 65535
  // One row's context may be cut where those of many are not.
  const bool split =
      IsSplit(gpu, shape, 1, limits.max_context) || IsSplit(gpu, shape, limits.max_rows, limits.max_context);
  if (!split && limits.max_context <= kMaxSharedScores) return plan;
  plan.stride = DivideUp(limits.max_context, kSplitUnit) * kSplitUnit;
  // A step has a row of each sequence; the short rows of a prompt may take more launches.
  const int64_t most =
      split ? std::min(limits.max_rows, std::max<int64_t>(limits.max_sequences, kLongSequenceRows)) : limits.max_rows;
  plan.rows_at_once = std::clamp<int64_t>(kMaxSpillFloats / (plan.stride * shape.num_heads), 1, most);
  if (split) plan.parts = plan.stride / kSplitUnit;
  return plan;
}

int64_t AttentionScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits) {
  if (shape.precision == Precision::kFp16) return Aligned(HalfRowRecordFloats(gpu, shape) * kFloat);
  const int64_t spill = SpillBytes(gpu, shape, limits);
  if (shape.mode == AttentionMode::kExact) return spill;
  const bool tiles = PlanScTiles(gpu, shape).supported && limits.max_rows >= kLongSequenceRows;
  const int64_t wide = limits.max_rows >= kLongSequenceRows ? WideBytes(gpu, shape, limits) : 0;
  // Tiles are done with theirs before rows take any.
  return QueryBytes(shape, limits) + std::max({spill, tiles ? TileBytes(gpu, shape, limits) : 0, wide});
}

}  // namespace stoch
