// SPDX-License-Identifier: Apache-2.0
// The plan of attention with every context cut over the GPU: by resident blocks, clusters or several kernels.
#include <algorithm>

#include "kernels/context_bucket.h"
#include "kernels/plan/attention_plan.h"
#include "kernels/plan/divide_up.h"

namespace stoch {
namespace {

constexpr int64_t kFloat = sizeof(float);

// Whether clusters of blocks keep the scores of a row, up to 6144 positions; four kernels take deeper rows, and all rows
// of a batch with a deep one, which would wait for its eight blocks.
void PlanFused(const GpuTraits& gpu, const AttentionShape& shape, int64_t max_length, SplitPlan& plan) {
  if (!plan.supported || plan.is_resident || !gpu.has_clusters) return;
  const int tiles = plan.block_heads > 4 ? 2 : 1;
  const int64_t fixed =
      kSplitTableBytes + SplitFusedBytes(shape.head_dim, tiles, kSplitRanks) + plan.block_heads * 4 * kFloat;
  const int64_t unit = plan.block_heads * (kSplitUnit / kSplitRanks) * kFloat;
  const int64_t room = gpu.max_shared_bytes / 2 - 1024;  // two blocks an SM
  plan.is_fused = fixed + unit <= room && max_length <= kLongContext;
  if (!plan.is_fused) return;
  plan.fused_units = static_cast<int>(std::min(DivideUp(max_length, kSplitUnit), (room - fixed) / unit));
  plan.fused_shared_bytes = fixed + plan.fused_units * unit;
}

// Blocks that every row and its heads have where all rows are equally deep, and the most positions of a block: a shallower
// row may have half as many more in each.
struct ResidentShare {
  int64_t ranks = 1;
  int64_t even = 0;
  int64_t positions = 0;
};
ResidentShare ShareOf(const SplitPlan& plan, const AttentionShape& shape, int64_t rows, int64_t max_length) {
  ResidentShare share;
  share.ranks = kSplitResidentRanks;
  while (share.ranks * rows * shape.num_kv_heads * plan.head_blocks > plan.resident_blocks) share.ranks /= 2;
  const int64_t units = DivideUp(max_length, kSplitUnit) * kSplitUnit;
  share.even = units / share.ranks;
  share.positions = std::min(units, share.even * (rows > 1 ? 3 : 2) / 2);
  return share;
}

// Masks whose streams of weights a block keeps; 0: it owns so many lanes that it has too many of them.
int ResidentMasks(const AttentionShape& shape, int64_t ranks) {
  const int masks = std::min(shape.av.masks, kSplitUnit / kSplitResidentRanks);
  return ranks == kSplitResidentRanks || masks == shape.av.masks ? masks : 0;
}

// Whether the resident kernel finds q k by look-ups, and p v by first words. Measured with 32 heads of 8B: its table of q k
// takes longer to make than streams of queries, so it wins by blocks with some 900 positions or more of several rows. Blocks of
// one row have 16 masks and so first words: a step takes 0.5 % longer with 512 positions than without look-ups (an H200), and as
// long or 1 % less with 768 (two H100s). It takes 195 KB of shared memory, which GPUs before Hopper do not have.
void PlanLookup(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length, SplitPlan& plan) {
  const int64_t min_positions = rows == 1 ? 640 : 896;  // of a block of equally deep rows, and more
  constexpr int kHeads = 4;
  constexpr int kDim = 128;
  constexpr int kLevels = 128;
  // A byte holds counts up to 127, and that of two largest levels, which alone may be 128 where ranks are direct.
  const bool fits = shape.qk.has_bytes && shape.qk.levels == kLevels &&
                    (shape.qk.max_count < kLevels || (shape.qk.direct_ranks && shape.qk.max_count == kLevels));
  if (!plan.is_resident || !fits || shape.head_dim != kDim || plan.block_heads > kHeads) return;
  const ResidentShare share = ShareOf(plan, shape, rows, max_length);
  if (gpu.lookup_from > 0 ? max_length < gpu.lookup_from : share.even <= min_positions) return;
  plan.lookup_masks = ResidentMasks(shape, share.ranks);
  // Deeper rows than there is room for have their scores in scratch.
  const int64_t streams = SplitStreamBytes(plan.lookup_masks, shape.av.levels);
  const int64_t aligned = DivideUp(share.positions, kSplitResidentStep) * kSplitResidentStep;
  const int64_t positions = std::min<int64_t>(aligned, kSplitLookupPositions);
  const int64_t counts = SplitLookupCountBytes(positions);
  // Streams of weights have room of their own, or what p v needs follows in the place of the counts.
  const int64_t apart = kSplitLookupBytes + counts + streams;
  const int64_t in_place = kSplitLookupBytes + std::max(counts, kSplitTableBytes + streams);
  plan.lookup_positions = static_cast<int>(positions);
  plan.lookup_shared_bytes = apart <= gpu.max_shared_bytes ? apart : in_place;
  plan.is_lookup = plan.lookup_shared_bytes <= gpu.max_shared_bytes;
  plan.has_words = plan.is_lookup && shape.swapped && shape.av.direct_ranks && shape.av.stoc_len == kLevels &&
                   plan.lookup_masks > 0 && kSplitLookupBytes + kSplitWordsBytes <= plan.lookup_shared_bytes;
}

// Whether all rows fit the GPU at once, a block or more for each of them and the heads that it takes.
void PlanResident(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length,
                  SplitPlan& plan) {
  constexpr int64_t kMinPositions = 256;    // that a block keeps, at least
  constexpr int64_t kTablePositions = 512;  // that go before streams of weights
  const int64_t groups = rows * shape.num_kv_heads * plan.head_blocks;
  if (!plan.supported || !shape.alone || rows > kSplitResidentRows || groups > gpu.sm_count) return;
  plan.resident_blocks = static_cast<int>(std::min<int64_t>(gpu.sm_count, groups * kSplitResidentRanks));
  const ResidentShare share = ShareOf(plan, shape, rows, max_length);
  const int64_t head_floats = plan.block_heads * kFloat;
  const int64_t position_bytes = head_floats + 2 * kFloat;  // scores, and the scales of a key and a value
  const int64_t fixed = kSplitTableBytes + SplitResidentBytes(shape.head_dim, plan.block_heads > 4 ? 2 : 1) +
                        kSplitResidentPad * head_floats;
  const auto positions = [&](int64_t table) {
    const int64_t room = gpu.max_shared_bytes - 1024 - fixed - table;
    const int64_t aligned = DivideUp(share.positions, kSplitResidentStep) * kSplitResidentStep;
    return std::min(aligned, std::max<int64_t>(room, 0) / position_bytes / kSplitResidentStep * kSplitResidentStep);
  };
  const int masks = ResidentMasks(shape, share.ranks);
  const int64_t table = SplitStreamBytes(masks, shape.av.levels);
  const bool has_table = masks > 0 && positions(table) >= std::min(share.positions, kTablePositions);
  plan.resident_masks = has_table ? masks : 0;
  plan.resident_positions = static_cast<int>(positions(has_table ? table : 0));
  plan.resident_shared_bytes =
      fixed + SplitStreamBytes(plan.resident_masks, shape.av.levels) + plan.resident_positions * position_bytes;
  plan.is_resident = plan.resident_positions >= std::min(share.positions, kMinPositions);
}

}  // namespace

SplitPlan PlanSplit(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length) {
  SplitPlan plan;
  const bool exact = shape.mode == AttentionMode::kExact && shape.precision == Precision::kFp32;
  if (!exact && (shape.mode != AttentionMode::kPerToken || (shape.head_dim != 64 && shape.head_dim != 128)))
    return plan;
  constexpr int kMostBlocks = 4;  // of an SM, that the kernels are compiled for
  const int most_heads = exact ? kSplitExactHeads : kSplitScHeads;
  const int group = shape.num_heads / std::max(1, shape.num_kv_heads);
  plan.head_blocks = static_cast<int>(DivideUp(group, most_heads));
  plan.block_heads = static_cast<int>(DivideUp(group, plan.head_blocks));
  plan.is_one_block = max_length <= kSplitOneBlockSoftmax;
  plan.score_blocks = plan.value_blocks = gpu.sm_count * kMostBlocks;
  plan.supported = exact;
  if (exact) return plan;
  plan.score_shared_bytes = kSplitTableBytes + SplitScoreBytes(shape.head_dim, plan.block_heads > 4 ? 2 : 1);
  plan.value_shared_bytes = kSplitTableBytes + SplitValueBytes(shape.head_dim);
  const auto blocks = [&](int64_t shared) {
    return gpu.sm_count * static_cast<int>(std::clamp<int64_t>(gpu.max_shared_bytes / shared, 1, kMostBlocks));
  };
  plan.score_blocks = blocks(plan.score_shared_bytes);
  plan.value_blocks = blocks(plan.value_shared_bytes);
  const auto fits = [](const ScTraits& sc) { return sc.has_streams && sc.has_common_ranks && sc.stoc_len <= 128; };
  plan.supported = fits(shape.qk) && fits(shape.av) &&
                   std::max(plan.score_shared_bytes, plan.value_shared_bytes) <= gpu.max_shared_bytes;
  PlanResident(gpu, shape, rows, max_length, plan);
  PlanLookup(gpu, shape, rows, max_length, plan);
  PlanFused(gpu, shape, max_length, plan);
  return plan;
}

}  // namespace stoch
