// SPDX-License-Identifier: Apache-2.0
// Factors that rebalance q and k after RoPE, as the published JSON file has them: {"scales": {"qk:bN": [head_dim]}}.
#pragma once

#include <string>
#include <vector>

#include "loader/research/smooth_file.h"

namespace stoch {

// `scales` of layer N is "N.qk", for all KV heads; a number is rounded once to float. Keys that are not read go to
// `unknown`. Errors: InvalidInput naming file, key, value and what is allowed.
SmoothFile ParseSmoothJson(const std::string& text, const std::string& name, std::vector<std::string>* unknown);

}  // namespace stoch
