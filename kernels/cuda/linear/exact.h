// SPDX-License-Identifier: Apache-2.0
// Exact fp32 linears: every dot product in kDotLanes strided lanes of fused multiply-adds, folded by halves.
//
// Bits: those of the CPU backend, for every number of rows: a batch only shares the weight's bytes.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/weights/weights.h"
#include "kernels/plan/linear/float.h"

namespace stoch::cuda {

// y = x @ w^T. Shapes: x F32 [rows, x_stride], columns w.cols..w.padded_cols-1 are +0. Requires: PlanExactLinear's plan.
void LaunchExactLinear(DeviceContext& ctx, const LinearPlan& plan, const float* x, int64_t x_stride, int64_t rows,
                       const ExactWeightView& w, const LinearOutput& out, const SiteReporter& reporter);

}  // namespace stoch::cuda
