// SPDX-License-Identifier: Apache-2.0
// Linears that multiply as integers (math/fixed_point.h), on int8 tensor cores: the exact LM head.
//
// An integer of a weight is two bytes q = 256 high + low, low unsigned; one of x is three signed bytes, the lowest first:
// a = d0 + 256 d1 + 65536 d2. Sums of each pair of bytes fit 32 bits up to kMaxFixedColumns columns; they join at the end.
// Weights stay the floats that they are stored as: whoever multiplies makes their bytes in registers.
#pragma once

#include <cstdint>

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/weights/weights.h"
#include "kernels/plan/linear/float.h"

namespace stoch::cuda {

// y = f(x) @ w^T, f the prologue of `source`. Shapes: source [rows, w.cols]. Requires: PlanFixedLinear's plan.
// Bits: those of the CPU backend. Reports NaN and infinity.
void LaunchFixedLinear(DeviceContext& ctx, const LinearPlan& plan, const RowSource& source, int64_t rows,
                       const FixedWeightView& w, const LinearOutput& out, const SiteReporter& reporter);

}  // namespace stoch::cuda
