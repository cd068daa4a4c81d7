// SPDX-License-Identifier: Apache-2.0
// Softmax of one row of attention scores.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd/simd.h"

namespace stoch::cpu {

// scores[i] = e[i] / sum(e), e[i] = Exp(scores[i] - max(scores)), in place over n >= 1 positions.
// Bits:   the sum in kRowLanes order by position.
void Softmax(const Simd& simd, float* scores, int64_t n);

}  // namespace stoch::cpu
