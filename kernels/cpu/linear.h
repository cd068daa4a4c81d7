// SPDX-License-Identifier: Apache-2.0
// The linear op: prologue, then SC or exact products with several weights (LinearCall in kernels/backend.h).
#pragma once

#include "kernels/cpu/context.h"

namespace stoch::cpu {

// Errors: InvalidInput for operands that break LinearCall's requirements, before any work. NaN or infinity in f(x) or
//         in a result is reported to context.finite.
void Linear(Context& context, const LinearCall& call);

// f(x) of a LinearCall, row by row.
struct RowPrologue {
  Prologue prologue = Prologue::kNone;
  const TensorView& x;
  const TensorView& x2;
  const TensorView& norm_weight;
  float norm_eps = 0;
  void Apply(const Simd& simd, int64_t row, float* out) const;
};

}  // namespace stoch::cpu
