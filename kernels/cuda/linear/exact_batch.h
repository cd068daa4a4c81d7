// SPDX-License-Identifier: Apache-2.0
// Exact fp32 linears of a batch of rows: the LM head of many sequences at once.
#pragma once

#include "kernels/cuda/linear/exact.h"

namespace stoch::cuda {

inline constexpr int kMaxExactBatchRows = 64;

// LaunchExactLinear for up to kMaxExactBatchRows rows: weights are read once for every 32.
// Requires: 1 <= rows <= kMaxExactBatchRows.
void LaunchExactBatch(DeviceContext& ctx, const float* x, int64_t x_stride, int64_t rows, const ExactWeightView& w,
                      const LinearOutput& out, const SiteReporter& reporter);

}  // namespace stoch::cuda
