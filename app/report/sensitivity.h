// SPDX-License-Identifier: Apache-2.0
// Divergences of single products as a table.
#pragma once

#include <span>
#include <string>

#include "research/calibrate/sensitivity.h"

namespace stoch::cli {

// Columns operator, layer, KL in streams, KL in integers, difference; in the order given.
std::string SensitivityTable(std::span<const OperatorSensitivity> ranked, int bits);

}  // namespace stoch::cli
