// SPDX-License-Identifier: Apache-2.0
// RMSNorm of one row.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd/simd.h"
#include "kernels/math/nonlinear_table.h"

namespace stoch::cpu {

// out[i] = (x[i] * r) * weight[i], r = 1 / sqrt(sum(x^2) / n + eps); out may be x.
// Bits:   the sum in kRowLanes order; every other operation rounded as written.
void RmsNorm(const Simd& simd, const float* x, const float* weight, float eps, int64_t n, float* out,
             const NonlinearTable* rsqrt = nullptr);

}  // namespace stoch::cpu
