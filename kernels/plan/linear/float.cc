// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/linear/float.h"

#include <algorithm>

#include "kernels/math/reduce.h"
#include "kernels/plan/divide_up.h"
#include "kernels/plan/scratch_layout.h"

namespace stoch {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kLoadBytes = 16;

// `cols` rounded up to whole loads of all lanes of a dot product.
int64_t ExactCols(int64_t cols, int value_bytes) {
  const int64_t block = kDotLanes * kLoadBytes / value_bytes;
  return DivideUp(cols, block) * block;
}

int64_t FixedCols(int64_t cols) { return DivideUp(cols, kFixedBlockCols) * kFixedBlockCols; }

}  // namespace

LinearPlan PlanExactLinear(const GpuTraits& gpu, int value_bytes, const LinearShape& shape) {
  const int64_t rows = shape.tokens;
  const int64_t cols = ExactCols(shape.in_features, value_bytes);
  LinearPlan plan;
  plan.quantize_bytes = ScratchLayout::Aligned(rows * cols * kFloat);
  if (rows > kMaxExactBatchRows) {
    plan.route = LinearRoute::kExactTiles;
    plan.tile_tokens = kExactTileTokens;
    plan.launch_bytes = ScratchLayout::Aligned(DivideUp(rows, kExactTileRows) * kExactTileRows * cols * kFloat);
    return plan;
  }
  // Take as many rows at once as shared memory holds.
  const int64_t fit = std::min(gpu.max_shared_bytes / (cols * kFloat), rows);
  if (fit > 0 && rows <= kMaxExactVectorRows) {
    plan.route = LinearRoute::kExactVector;
    plan.tile_tokens = static_cast<int>(fit);
    plan.shared_bytes = fit * cols * kFloat;
    return plan;
  }
  plan.route = LinearRoute::kExactBatch;
  plan.tile_tokens = rows <= 8 ? 8 : rows <= 16 ? 16 : 32;
  const int64_t pitch = plan.tile_tokens + kExactBatchPadding;
  plan.shared_bytes = kExactBatchStages * kDotLanes * kLoadBytes / value_bytes * pitch * kFloat;
  plan.launch_bytes = ScratchLayout::Aligned(DivideUp(rows, plan.tile_tokens) * cols * pitch * kFloat);
  return plan;
}

LinearPlan PlanFixedLinear(const GpuTraits& gpu, const LinearShape& shape, const LinearPass& pass) {
  const int64_t rows = shape.tokens;
  const int64_t cols = FixedCols(shape.in_features);
  LinearPlan plan;
  const bool few = rows <= kFixedVectorRows;
  // Every digit of every row is a column of products, in tiles of 8.
  const int64_t columns = few ? DivideUp(rows * kFixedDigits, 8) * 8 : kFixedTileTokens * kFixedDigits;
  plan.tile_tokens = static_cast<int>(few ? DivideUp(columns, kFixedDigits) : kFixedTileTokens);
  const int64_t padded_rows = DivideUp(rows, plan.tile_tokens) * plan.tile_tokens;
  plan.quantize_bytes = ScratchLayout::Aligned(few ? columns * cols : padded_rows * cols * kFixedDigits) +
                        ScratchLayout::Aligned(padded_rows * static_cast<int64_t>(sizeof(double)));
  if (pass.only_largest && rows == 1) {
    plan.route = LinearRoute::kFixedScreen;
  } else if (few) {
    plan.route = LinearRoute::kFixedVector;
  } else {
    plan.route = gpu.has_wgmma ? LinearRoute::kFixedWgmma : LinearRoute::kFixedTiles;
    plan.shared_bytes = kFixedTileBytes;
  }
  return plan;
}

LinearPlan PlanHalfLinear(const LinearShape& shape) {
  constexpr int64_t kHalf = 2;
  LinearPlan plan;
  plan.route = LinearRoute::kHalfGemm;
  plan.quantize_bytes = shape.tokens * shape.in_features * kHalf;
  return plan;
}

int64_t ExactLinearScratchBytes(int64_t cols, int64_t max_rows) {
  const int64_t padded = ExactCols(cols, 2);  // for the smallest type, which pads most
  const int64_t tiles = DivideUp(max_rows, kExactTileRows);
  const int64_t batch_tiles = std::min<int64_t>(tiles, kMaxExactBatchRows / kExactTileRows);
  const int64_t copy = std::max(tiles * kExactTileRows, batch_tiles * (kExactTileRows + kExactBatchPadding)) * padded;
  return (max_rows * padded + copy) * kFloat + 2 * ScratchLayout::kAlignment;
}

int64_t FixedLinearScratchBytes(int64_t cols, int64_t max_rows) {
  const int64_t rows = DivideUp(max_rows, kFixedTileTokens) * kFixedTileTokens;
  return rows * (FixedCols(cols) * kFixedDigits + static_cast<int64_t>(sizeof(double))) + 2 * ScratchLayout::kAlignment;
}

}  // namespace stoch
