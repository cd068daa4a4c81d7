// SPDX-License-Identifier: Apache-2.0
// The KL statistics of `stoch perplexity`, as llama.cpp prints them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/kl_divergence.h"

namespace stoch::cli {

// Mean KLD, 99 % KLD, same top, RMS dp: the columns of a table.
std::vector<std::string> KlCells(const KlSummary& summary);
std::string KlText(const KlSummary& summary);
nlohmann::ordered_json KlJson(const KlSummary& summary);

}  // namespace stoch::cli
