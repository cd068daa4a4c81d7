// SPDX-License-Identifier: Apache-2.0
// Linears of floats on a GPU: fp32, fp32 as products of integers, and the fp16 baseline.
#pragma once

#include <cstdint>

#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/linear/plan.h"

namespace stoch {

// PlanLinear of one matrix. value_bytes: of a number of the weight in memory.
LinearPlan PlanExactLinear(const GpuTraits& gpu, int value_bytes, const LinearShape& shape);
LinearPlan PlanFixedLinear(const LinearShape& shape, const LinearPass& pass);
// PlanLinear of 1..kMaxScTasks matrices.
LinearPlan PlanHalfLinear(const LinearShape& shape);

// Bytes of the workspace that fp32 linears of this many columns take for up to max_rows rows of x: x padded, and a copy in
// the order in which the kernels of many rows read it.
int64_t ExactLinearScratchBytes(int64_t cols, int64_t max_rows);
int64_t FixedLinearScratchBytes(int64_t cols, int64_t max_rows);

// ---- Sizes of the kernels, which check them where they are compiled.
inline constexpr int kMaxExactVectorRows = 4;
inline constexpr int kMaxExactBatchRows = 64;
inline constexpr int kExactBatchStages = 3;
inline constexpr int kExactBatchPadding = 4;  // floats after the tokens of a column
inline constexpr int kExactTileRows = 32;     // that the transposed copy of x is padded to
inline constexpr int kExactTileTokens = 128;
inline constexpr int kFixedDigits = 3;      // bytes of a number of x
inline constexpr int kFixedVectorRows = 8;  // rows of x of the kernel that reads weights straight into products
inline constexpr int kFixedTileTokens = 64;
inline constexpr int kFixedBlockCols = 128;  // that columns are padded to
inline constexpr int64_t kFixedTileBytes = int64_t{4} * kFixedBlockCols * kFixedDigits * kFixedTileTokens;  // 4 stages

}  // namespace stoch
