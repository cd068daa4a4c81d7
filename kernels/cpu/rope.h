// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding of one token.
#pragma once

#include <cstdint>

namespace stoch::cpu {

// Rotates the pairs (i, i + head_dim / 2) of every head of one row in place: x1' = (x1 * cos) - (x2 * sin), x2' = (x2 *
// cos) + (x1 * sin), every product and sum rounded.
// Shapes: x [num_heads, head_dim]; angles [head_dim]: cosines of the pairs, then sines, of the row's position.
void Rope(float* x, int64_t num_heads, int64_t head_dim, const float* angles);

}  // namespace stoch::cpu
