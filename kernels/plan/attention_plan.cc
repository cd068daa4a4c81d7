#include "kernels/plan/attention_plan.h"

#include <algorithm>

namespace stoch {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kAlignment = 256;  // of what is taken from the workspace

constexpr int kRowTileTokens = 128;  // positions that a block of a cluster takes in turn
constexpr int64_t kMaxTableBytes = 160 << 10;
constexpr int64_t kMaxSpillFloats = int64_t{64} << 20;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }
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
      std::min(tiles * shape.num_heads * head_bytes,
               std::max(gpu.max_score_bytes, shape.num_heads / std::max(1, shape.num_kv_heads) * head_bytes));
  return packed_bytes + 2 * Aligned(score_bytes) + Aligned(tiles * shape.num_heads * kQueryTile * kFloat);
}

int64_t SpillBytes(const AttentionShape& shape, const AttentionLimits& limits) {
  const SpillPlan spill = PlanSpill(shape, limits.max_rows, limits.max_context);
  return Aligned(spill.stride * spill.rows_at_once * shape.num_heads * kFloat);
}

}  // namespace

std::string_view AttentionKernelName(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::kScRows: return "rows";
    case AttentionKernel::kScTiles: return "tiles";
    case AttentionKernel::kExactRows: return "exact-rows";
    case AttentionKernel::kHalfRows: return "half-rows";
    case AttentionKernel::kHalfTiles: return "half-tiles";
  }
  return "?";
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
  return shape;
}

AttentionPlan PlanAttention(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, bool recording) {
  AttentionPlan plan;
  const bool few = rows <= kFreshRows;
  if (shape.mode != AttentionMode::kExact) {
    plan.short_rows = plan.long_rows = AttentionKernel::kScRows;
    plan.is_fresh = few && shape.mode == AttentionMode::kPerToken;
    if (!recording && PlanScTiles(gpu, shape).supported) plan.long_rows = AttentionKernel::kScTiles;
  } else if (shape.precision == Precision::kFp16) {
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

int HalfRowCluster(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length) {
  int cluster = 1;
  if (!gpu.has_clusters || max_length <= kHalfRowSoloTokens) return cluster;
  const int64_t blocks = rows * shape.num_kv_heads;
  while (cluster < kMaxAttentionCluster && blocks * cluster < gpu.sm_count && cluster * 64 < max_length) cluster *= 2;
  return cluster;
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

TileGroup CutTiles(const GpuTraits& gpu, const AttentionShape& shape, int64_t stride, int64_t tiles) {
  const int64_t head_bytes = kQueryTile * stride * 2;
  const int64_t tile_bytes = head_bytes * shape.num_heads;
  if (tile_bytes <= gpu.max_score_bytes)
    return {std::clamp<int64_t>(gpu.max_score_bytes / tile_bytes, 1, tiles), shape.num_heads};
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  return {1, std::max<int64_t>(gpu.max_score_bytes / (head_bytes * group), 1) * group};
}

SpillPlan PlanSpill(const AttentionShape& shape, int64_t rows, int64_t max_context) {
  SpillPlan plan;
  plan.rows_at_once = 32768;  // gridDim is limited to 65535
  if (max_context <= kMaxSharedScores) return plan;
  plan.stride = max_context;
  plan.rows_at_once = std::clamp<int64_t>(kMaxSpillFloats / (max_context * shape.num_heads), 1, rows);
  return plan;
}

int64_t AttentionScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits) {
  if (shape.precision == Precision::kFp16) return 0;
  const int64_t spill = SpillBytes(shape, limits);
  if (shape.mode == AttentionMode::kExact) return spill;
  const bool tiles = PlanScTiles(gpu, shape).supported && limits.max_rows >= kLongSequenceRows;
  // Tiles are done with theirs before rows take any.
  return QueryBytes(shape, limits) + std::max(spill, tiles ? TileBytes(gpu, shape, limits) : 0);
}

}  // namespace stoch
