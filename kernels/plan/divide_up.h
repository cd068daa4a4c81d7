// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace stoch {

// a / b, rounded up. Requires: a >= 0, b > 0.
constexpr int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace stoch
