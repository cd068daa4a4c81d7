// SPDX-License-Identifier: Apache-2.0
// The router of a mixture of experts on a GPU (RouteCall).
#pragma once

#include <cstdint>

#include "kernels/plan/gpu_traits.h"

namespace stoch {

enum class RouterRoute : uint8_t {
  kFusedBlock,  // norm, product and choice of one row in one kernel; a block chooses
  kFusedWarp,   // norm, product and choice of a few rows in one kernel; a warp a row chooses
  kRows,        // softmax and choice alone, a warp a row that it holds
  kLongRows,    // the same of any number of experts, read again for every choice
};

struct RouterShape {
  int64_t rows = 0;
  int64_t experts = 0;
  int64_t top_k = 0;
  // Columns of the product in front, as its weights are padded, where that is one fp32 linear of rows under an RMS norm
  // which sets its outputs; otherwise 0.
  int64_t product_cols = 0;
};

struct RouterPlan {
  RouterRoute route = RouterRoute::kLongRows;
  int64_t shared_bytes = 0;  // dynamic, of a block of the fused kernel
  bool is_fused() const { return route == RouterRoute::kFusedBlock || route == RouterRoute::kFusedWarp; }
};

RouterPlan PlanRouter(const GpuTraits& gpu, const RouterShape& shape);

// ---- Sizes of the kernels, which check them where they are compiled.
inline constexpr int kMaxFusedRouterRows = 4;
inline constexpr int kFusedRouterExperts = 32;   // of a block
inline constexpr int kWarpRouterExperts = 256;   // that a warp holds the probabilities of
inline constexpr int kWarpRouterChoices = 32;    // of a warp, one a thread
inline constexpr int kBlockRouterExperts = 128;  // of a block that chooses
inline constexpr int kBlockRouterChoices = 16;
inline constexpr int64_t kFusedRouterStaticBytes =
    int64_t{kMaxFusedRouterRows} * 256 * sizeof(float);  // lanes of norms

}  // namespace stoch
