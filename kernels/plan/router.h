// SPDX-License-Identifier: Apache-2.0
// The router of a mixture of experts on a GPU (RouteCall).
#pragma once

#include <cstdint>

#include "kernels/plan/gpu_traits.h"

namespace stoch {

enum class RouterRoute : uint8_t {
  kFusedBlock,  // norm, product and choice of one row in one kernel; a block chooses, and posts (Handover::kWords)
  kFusedWarp,   // norm, product and choice of a few rows in one kernel; one warp per row chooses
  kRows,        // softmax and choice only; one warp per row, which it holds in registers
  kLongRows,    // as kRows for any number of experts; the logits are read again for every choice
};

struct RouterShape {
  int64_t rows = 0;
  int64_t experts = 0;
  int64_t top_k = 0;
  // Padded columns of the weights of the linear that makes the logits, if that is a single fp32 linear with an RMSNorm
  // prologue that sets (does not add to) its outputs; else 0.
  int64_t product_cols = 0;
};

struct RouterPlan {
  RouterRoute route = RouterRoute::kLongRows;
  int64_t shared_bytes = 0;  // dynamic shared memory of a block of the fused kernel
  bool is_fused() const { return route == RouterRoute::kFusedBlock || route == RouterRoute::kFusedWarp; }
};

RouterPlan PlanRouter(const GpuTraits& gpu, const RouterShape& shape);

// ---- Sizes of the kernels, which check them at compile time.
inline constexpr int kMaxFusedRouterRows = 4;
inline constexpr int kFusedRouterExperts = 32;   // experts whose logits a block computes
inline constexpr int kWarpRouterExperts = 256;   // most experts whose probabilities a warp holds
inline constexpr int kWarpRouterChoices = 32;    // most choices of a warp, one per thread
inline constexpr int kBlockRouterExperts = 128;  // most experts among which a block chooses (kFusedBlock)
inline constexpr int kBlockRouterChoices = 16;
// Static shared memory of the fused kernel: lane sums of the norms.
inline constexpr int64_t kFusedRouterStaticBytes = int64_t{kMaxFusedRouterRows} * 256 * sizeof(float);

}  // namespace stoch
