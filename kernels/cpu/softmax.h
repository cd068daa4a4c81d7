// SPDX-License-Identifier: Apache-2.0
// Softmax of one row of attention scores.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd/simd.h"
#include "kernels/math/nonlinear_table.h"

namespace stoch::cpu {

// e[i] = Exp(x[i] - shift), or what a table has in its place, in place; returns the sum in kRowLanes order.
float ExpSum(const Simd& simd, const NonlinearTable* table, float* x, int64_t n, float shift);

// scores[i] = e[i] / sum(e), e[i] = Exp(scores[i] - max(scores)), in place over n >= 1 positions.
// Bits:   the sum in kRowLanes order by position.
void Softmax(const Simd& simd, float* scores, int64_t n, const NonlinearTable* table = nullptr);

}  // namespace stoch::cpu
