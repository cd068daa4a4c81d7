// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/attention/rows.h"

#include <algorithm>

#include "kernels/plan/divide_up.h"

namespace stoch {

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
  constexpr int kBlocksPerSm = 2;  // occupancy that the kernel is compiled for
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

}  // namespace stoch
