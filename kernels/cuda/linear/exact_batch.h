// SPDX-License-Identifier: Apache-2.0
// Exact fp32 linears of a batch of rows, such as the LM head of many sequences.
#pragma once

#include "kernels/cuda/linear/exact.h"

namespace stoch::cuda {

// LaunchExactLinear for up to kMaxExactBatchRows rows; weights are read once per plan.tile_tokens rows.
// Requires: plan.route is kExactBatch.
void LaunchExactBatch(DeviceContext& ctx, const LinearPlan& plan, const float* x, int64_t x_stride, int64_t rows,
                      const ExactWeightView& w, const LinearOutput& out, const SiteReporter& reporter);

}  // namespace stoch::cuda
