// SPDX-License-Identifier: Apache-2.0
// Linears of floats on a GPU: fp32, fp32 as products of integers, and the fp16 baseline.
#pragma once

#include <cstdint>

#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/linear/plan.h"

namespace stoch {

// PlanLinear of one matrix. value_bytes: bytes of a number of the weight in memory.
LinearPlan PlanExactLinear(const GpuTraits& gpu, int value_bytes, const LinearShape& shape);
LinearPlan PlanFixedLinear(const GpuTraits& gpu, const LinearShape& shape, const LinearPass& pass);
// PlanLinear of 1..kMaxScTasks matrices.
LinearPlan PlanHalfLinear(const LinearShape& shape);

// Bytes of the workspace that fp32 linears of `cols` columns take for up to max_rows rows of x: x padded, and a copy of
// it in the order in which the kernels of many rows read it.
int64_t ExactLinearScratchBytes(int64_t cols, int64_t max_rows);
int64_t FixedLinearScratchBytes(int64_t cols, int64_t max_rows);

// ---- Sizes of the kernels, which check them at compile time.
inline constexpr int kMaxExactVectorRows = 4;
inline constexpr int kMaxExactBatchRows = 64;
inline constexpr int kExactBatchStages = 3;
inline constexpr int kExactBatchPadding = 4;  // floats after the tokens of a column
inline constexpr int kExactTileRows = 32;     // the rows of the transposed copy of x are padded to a multiple of this
inline constexpr int kExactTileTokens = 128;
inline constexpr int kFixedDigits = 3;      // bytes (digits) of an integer of x
inline constexpr int kFixedVectorRows = 8;  // most rows of x of FixedVectorKernel
inline constexpr int kFixedTileTokens = 64;
inline constexpr int kFixedBlockCols = 128;  // columns are padded to a multiple of this
inline constexpr int64_t kFixedTileBytes = int64_t{4} * kFixedBlockCols * kFixedDigits * kFixedTileTokens;  // 4 stages

}  // namespace stoch
