// SPDX-License-Identifier: Apache-2.0
// Exact fp32 linears: every dot product is computed in kDotLanes strided lanes of fused multiply-adds, which are then
// folded by halves (kernels/math/reduce.h).
//
// Bits: identical to the CPU backend for every number of rows; rows of a batch share loads of the weights, but the sums
//       of a row do not depend on the others.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/weights/weights.h"
#include "kernels/plan/linear/float.h"

namespace stoch::cuda {

// y = x @ w^T, set or added to `out`. x: F32 [rows, x_stride], with +0 in columns w.cols .. w.padded_cols - 1.
// Requires: `plan` from PlanExactLinear.
void LaunchExactLinear(DeviceContext& ctx, const LinearPlan& plan, const float* x, int64_t x_stride, int64_t rows,
                       const ExactWeightView& w, const LinearOutput& out, const SiteReporter& reporter);

}  // namespace stoch::cuda
