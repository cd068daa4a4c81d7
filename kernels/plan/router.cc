// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/router.h"

namespace stoch {

RouterPlan PlanRouter(const GpuTraits& gpu, const RouterShape& shape) {
  const bool in_warp = shape.experts <= kWarpRouterExperts && shape.top_k <= kWarpRouterChoices;
  const bool in_block = shape.experts <= kBlockRouterExperts && shape.top_k <= kBlockRouterChoices;
  // Shared memory of the fused kernel: the norm's weights, then f(x) of every row.
  const int64_t rows = shape.rows == 1 ? 1 : kMaxFusedRouterRows;
  const int64_t fused_bytes = (1 + rows) * shape.product_cols * static_cast<int64_t>(sizeof(float));
  // Blocks of the fused kernel wait for each other's logits: all of them have to run at once.
  if (shape.product_cols > 0 && shape.rows >= 1 && shape.rows <= kMaxFusedRouterRows && in_warp &&
      fused_bytes + kFusedRouterStaticBytes <= gpu.max_shared_bytes &&
      shape.experts <= int64_t{gpu.sm_count} * kFusedRouterExperts) {
    return {shape.rows == 1 && in_block ? RouterRoute::kFusedBlock : RouterRoute::kFusedWarp, fused_bytes};
  }
  return {in_warp ? RouterRoute::kRows : RouterRoute::kLongRows, 0};
}

}  // namespace stoch
