// SPDX-License-Identifier: Apache-2.0
// Tables of functions (kernels/math/nonlinear_table.h), made of the engine's own functions.
#pragma once

#include <optional>
#include <string>

#include "kernels/math/nonlinear_table.h"

namespace stoch {

struct NonlinearPieces {
  std::string function;  // silu, exp, rsqrt
  int segments = 0;
  double lo = 0, hi = 0;
  std::optional<int> in_bits = {}, out_bits = {};
};

// Chords between segments + 1 cuts at equal distances; above hi the identity's slope for silu, else none.
// Errors: InvalidInput: an unknown function, segments outside 1..4095, a range that is none, that float32 does not
//         hold apart, or is not above 0 for rsqrt; bits outside -8..20.
NonlinearTable MakeNonlinearTable(const NonlinearPieces& pieces);

}  // namespace stoch
