// SPDX-License-Identifier: Apache-2.0
// The prologue of linears (LinearCall in kernels/calls.h).
#pragma once

#include "kernels/cpu/context.h"

namespace stoch::cpu {

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
