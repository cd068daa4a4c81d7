// SPDX-License-Identifier: Apache-2.0
// How layers are divided over ranks, and how long these are waited for.
#pragma once

#include "app/options/rank_options.h"

namespace CLI {
class Option;
}

namespace stoch::cli {

// --rank-layers and --rank-limit, which need the option `ranks`.
void AddRankDivision(CLI::App& command, RankOptions* options, CLI::Option* ranks);

}  // namespace stoch::cli
