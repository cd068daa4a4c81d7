// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/attention/split.h"

#include <algorithm>

#include "kernels/plan/divide_up.h"

namespace stoch {
namespace {

constexpr int64_t kFloat = sizeof(float);

bool IsExact(const AttentionShape& shape) { return shape.mode == AttentionMode::kExact; }

// The share of a resident block. ranks: blocks of a row and group of heads, if all rows have the same length; even:
// positions of each block then; positions: most positions of a block. With several rows that is half as many again,
// because a shorter row has fewer blocks.
struct ResidentShare {
  int64_t ranks = 1;
  int64_t even = 0;
  int64_t positions = 0;
};
ResidentShare ShareOf(const SplitPlan& plan, const AttentionShape& shape, int64_t rows, int64_t max_length) {
  ResidentShare share;
  share.ranks = kSplitResidentRanks;
  while (share.ranks * rows * shape.num_kv_heads * plan.head_blocks > plan.blocks) share.ranks /= 2;
  const int64_t units = DivideUp(max_length, kSplitUnit) * kSplitUnit;
  share.even = units / share.ranks;
  share.positions = std::min(units, share.even * (rows > 1 ? 3 : 2) / 2);
  return share;
}

// Number of masks whose streams of weights a block keeps in shared memory; 0: the block has so many lanes that its
// masks are too many.
int ResidentMasks(const AttentionShape& shape, int64_t ranks) {
  const int masks = std::min(shape.av.masks, kSplitUnit / kSplitResidentRanks);
  return ranks == kSplitResidentRanks || masks == shape.av.masks ? masks : 0;
}

// Chooses q k by look-ups, and p v by first words, if that pays. Measured with the 32 heads of an 8B model: the table
// of q k takes longer to make than streams of queries, so with several rows look-ups win only if blocks have some 900
// positions or more. Blocks of a single row have 16 masks and can take p v by first words: compared with no look-ups, a
// step takes 0.5 % longer with 512 positions a block (H200), and as long or 1 % less with 768 (two H100s). Look-ups
// take 195 KB of shared memory, which GPUs before Hopper do not have.
void PlanLookup(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length, SplitPlan& plan) {
  const int64_t min_positions = rows == 1 ? 640 : 896;  // a block must have more positions if rows are equally deep
  constexpr int kHeads = 4;
  constexpr int kDim = 128;
  constexpr int kLevels = 128;
  // A byte of the table holds counts up to 127. With direct ranks, only the count of the two largest levels can be 128,
  // and the kernel handles it apart.
  const bool fits = shape.qk.has_bytes && shape.qk.levels == kLevels &&
                    (shape.qk.max_count < kLevels || (shape.qk.direct_ranks && shape.qk.max_count == kLevels));
  if (!fits || shape.head_dim != kDim || plan.block_heads > kHeads) return;
  const ResidentShare share = ShareOf(plan, shape, rows, max_length);
  if (gpu.lookup_from > 0 ? max_length < gpu.lookup_from : share.even <= min_positions) return;
  const int masks = ResidentMasks(shape, share.ranks);
  // Rows with more positions than there is room for have their scores in scratch.
  const int64_t streams = SplitStreamBytes(masks, shape.av.levels);
  const int64_t aligned = DivideUp(share.positions, kSplitResidentStep) * kSplitResidentStep;
  const int64_t positions = std::min<int64_t>(aligned, kSplitLookupPositions);
  const int64_t counts = SplitLookupCountBytes(positions);
  // Streams of weights get room of their own if it fits; else the operands of p v replace the counts of q k.
  const int64_t apart = kSplitLookupBytes + counts + streams;
  const int64_t in_place = kSplitLookupBytes + std::max(counts, kSplitTableBytes + streams);
  const int64_t bytes = apart <= gpu.max_shared_bytes ? apart : in_place;
  if (bytes > gpu.max_shared_bytes) return;
  const bool words = shape.swapped && shape.av.direct_ranks && shape.av.stoc_len == kLevels && masks > 0 &&
                     kSplitLookupBytes + kSplitWordsBytes <= bytes;
  plan.kernel = words ? SplitKernel::kLookupWords : SplitKernel::kLookup;
  plan.positions = static_cast<int>(positions);
  plan.masks = masks;
  plan.shared_bytes = bytes;
}

// Chooses resident blocks if all rows fit the GPU at once, with at least one block for each row and group of heads.
void PlanResident(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length,
                  SplitPlan& chosen) {
  SplitPlan plan = chosen;
  constexpr int64_t kMinPositions = 256;    // least positions that a block must have room for
  constexpr int64_t kTablePositions = 512;  // positions that get room before streams of weights do
  const int64_t groups = rows * shape.num_kv_heads * plan.head_blocks;
  if (gpu.is_shared || rows > kSplitResidentRows || groups > gpu.sm_count || shape.page_tokens < kSplitLookupTile) {
    return;
  }
  plan.blocks = static_cast<int>(std::min<int64_t>(gpu.sm_count, groups * kSplitResidentRanks));
  const ResidentShare share = ShareOf(plan, shape, rows, max_length);
  const int64_t head_floats = plan.block_heads * kFloat;
  const int64_t position_bytes = head_floats + 2 * kFloat;  // the scores, and the scales of the key and the value
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
  plan.masks = has_table ? masks : 0;
  plan.positions = static_cast<int>(positions(has_table ? table : 0));
  plan.shared_bytes = fixed + SplitStreamBytes(plan.masks, shape.av.levels) + plan.positions * position_bytes;
  if (plan.positions < std::min(share.positions, kMinPositions)) return;
  plan.kernel = SplitKernel::kResident;
  PlanLookup(gpu, shape, rows, max_length, plan);
  chosen = plan;
}

}  // namespace

SplitPlan PlanSplitParts(const GpuTraits& gpu, const AttentionShape& shape, int64_t max_length) {
  SplitPlan plan;
  const bool exact = IsExact(shape);
  if (!exact && (shape.mode != AttentionMode::kPerToken || (shape.head_dim != 64 && shape.head_dim != 128)))
    return plan;
  constexpr int kMostBlocks = 4;  // occupancy that the kernels are compiled for
  const int group = shape.group();
  plan.head_blocks = static_cast<int>(DivideUp(group, exact ? kSplitExactHeads : kSplitScHeads));
  plan.block_heads = static_cast<int>(DivideUp(group, plan.head_blocks));
  plan.softmax = max_length <= kSplitOneBlockSoftmax ? SplitSoftmax::kOneBlock : SplitSoftmax::kByParts;
  plan.score_blocks = plan.value_blocks = gpu.sm_count * kMostBlocks;
  if (exact) {
    plan.kernel = SplitKernel::kParts;
    return plan;
  }
  plan.score_shared_bytes = kSplitTableBytes + SplitScoreBytes(shape.head_dim, plan.block_heads > 4 ? 2 : 1);
  plan.value_shared_bytes = kSplitTableBytes + SplitValueBytes(shape.head_dim);
  const auto blocks = [&](int64_t shared) {
    return gpu.sm_count * static_cast<int>(std::clamp<int64_t>(gpu.max_shared_bytes / shared, 1, kMostBlocks));
  };
  plan.score_blocks = blocks(plan.score_shared_bytes);
  plan.value_blocks = blocks(plan.value_shared_bytes);
  const auto fits = [](const ScTraits& sc) { return sc.has_streams && sc.has_common_ranks && sc.stoc_len <= 128; };
  const bool supported = fits(shape.qk) && fits(shape.av) &&
                         std::max(plan.score_shared_bytes, plan.value_shared_bytes) <= gpu.max_shared_bytes;
  if (supported) plan.kernel = SplitKernel::kParts;
  return plan;
}

SplitPlan PlanSplit(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length) {
  SplitPlan plan = PlanSplitParts(gpu, shape, max_length);
  if (plan.kernel == SplitKernel::kNone || IsExact(shape)) return plan;
  PlanResident(gpu, shape, rows, max_length, plan);
  return plan;
}

int64_t SplitSums(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows) {
  return std::max<int64_t>(rows * shape.num_heads, int64_t{gpu.sm_count} * kSplitScHeads) * shape.head_dim;
}

}  // namespace stoch
