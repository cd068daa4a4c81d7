// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/attention/rows.h"

#include <algorithm>

#include "kernels/plan/divide_up.h"

namespace stoch {

ScRowPlan PlanScRows(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length) {
  ScRowPlan plan;
  const int64_t row_heads = rows * shape.num_heads;
  // Take enough blocks to fill the GPU, but no more than the context has tiles for.
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

}  // namespace stoch
