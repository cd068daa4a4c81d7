// SPDX-License-Identifier: Apache-2.0
// Linears computed as products of integers (math/fixed_point.h) on int8 tensor cores, for the exact LM head.
//
// An integer q of a weight is two bytes, q = 256 high + low with low unsigned. An integer a of x is three signed bytes
// ("digits"), the lowest first: a = d0 + 256 d1 + 65536 d2. The sum of products of any two bytes fits 32 bits for up to
// kMaxFixedColumns columns; these sums are combined in 64 bits at the end. Weights are stored as 16-bit floats, and
// kernels make the bytes in registers.
#pragma once

#include <cstdint>

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/weights/weights.h"
#include "kernels/plan/linear/float.h"

namespace stoch::cuda {

// y = f(x) @ w^T, set or added to `out`, with f the prologue of `source`. Shapes: source [rows, w.cols]. Requires:
// `plan` from PlanFixedLinear.
// Bits: identical to the CPU backend. Reports NaN and infinity.
void LaunchFixedLinear(DeviceContext& ctx, const LinearPlan& plan, const RowSource& source, int64_t rows,
                       const FixedWeightView& w, const LinearOutput& out, const SiteReporter& reporter);

}  // namespace stoch::cuda
