// SPDX-License-Identifier: Apache-2.0
// The prologue of linears (LinearCall in kernels/calls.h).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/context.h"
#include "kernels/math/nonlinear_table.h"

namespace stoch::cpu {

// out[i] = Silu(x[i]) * x2[i], or a table in the place of Silu.
void SiluMul(const Simd& simd, const NonlinearTable* table, const float* x, const float* x2, int64_t n, float* out);

// f(x) of a LinearCall, row by row.
struct RowPrologue {
  Prologue prologue = Prologue::kNone;
  const TensorView& x;
  const TensorView& x2;
  const TensorView& norm_weight;
  float norm_eps = 0;
  const NonlinearTable* table = nullptr;
  void Apply(const Simd& simd, int64_t row, float* out) const;
};

// The rows of one expert as a LinearCall of one weight.
struct ExpertRows {
  std::span<const int64_t> tokens;    // the rows of the call that chose it, ascending
  std::span<const int> lengths = {};  // stream length of each row, or (row, chunk), if the call gives them
};
void Linear(Context& context, const LinearCall& call, const ExpertRows& expert);

}  // namespace stoch::cpu
