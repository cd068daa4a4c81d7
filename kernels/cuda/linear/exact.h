// SPDX-License-Identifier: Apache-2.0
// Exact fp32 linears: every dot product in kDotLanes strided lanes of fused multiply-adds, folded by halves.
//
// Bits: those of the CPU backend, for every number of rows: a batch only shares the weight's bytes.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/weights/weights.h"

namespace stoch::cuda {

// y = x @ w^T. Shapes: x F32 [rows, x_stride], columns w.cols..w.padded_cols-1 are +0.
void LaunchExactLinear(DeviceContext& ctx, const float* x, int64_t x_stride, int64_t rows, const ExactWeightView& w,
                       const LinearOutput& out, const SiteReporter& reporter);

// Bytes of ctx.workspace that linears of this many columns take for up to max_rows rows: x padded, and a copy of it in
// the order in which the kernels for many rows want it.
int64_t ExactLinearScratchBytes(int64_t cols, int64_t max_rows);

}  // namespace stoch::cuda
