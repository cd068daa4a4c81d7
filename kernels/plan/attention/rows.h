// SPDX-License-Identifier: Apache-2.0
// Launches of the row kernels: a cluster of blocks per row and head.
#pragma once

#include <cstdint>

#include "kernels/plan/attention/shape.h"
#include "kernels/plan/gpu_traits.h"

namespace stoch {

// One launch of the SC row kernel (attention/row.cu).
struct ScRowPlan {
  int cluster = 1;           // blocks of a (row, head)
  int blocks_per_sm = 1;     // occupancy that the kernel is compiled for: 1, 2 or 4
  int shared_scores = 0;     // positions whose scores stay in shared memory; longer contexts spill
  int64_t shared_bytes = 0;  // dynamic shared memory of a block
  int64_t static_bytes = 0;  // upper bound of static shared memory
};
ScRowPlan PlanScRows(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length);

inline constexpr int kScRowSoloTokens = 256;  // longest context, in positions, for which one block beats a cluster
inline constexpr int kMaxAttentionCluster = 8;
inline constexpr int kMaxSharedScores = 8192;
inline constexpr int kRowTileTokens = 128;  // positions that a block of a cluster takes at a time

// Sizes of row.cu, which checks them at compile time.
// Dynamic shared memory besides gathered outputs and scores.
inline constexpr int64_t kScRowFixedBytes = 10496 + 256 * 128;
inline constexpr int64_t kScRowStaticBytes = 8192;

}  // namespace stoch
