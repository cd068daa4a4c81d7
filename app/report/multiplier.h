// SPDX-License-Identifier: Apache-2.0
// What a multiplier table is, for `stoch inspect --table`.
#pragma once

#include <string>

#include "kernels/sc/multiplier_table.h"

namespace stoch::cli {

// How far it is from the exact product, what it gives for 0, whether signs are symmetric, and which kernel runs it.
// kFile: the code that the table's operands say.
std::string MultiplierText(const MultiplierTable& table, ScTableCode code);
std::string MultiplierJson(const MultiplierTable& table, ScTableCode code);

}  // namespace stoch::cli
