// SPDX-License-Identifier: Apache-2.0
// --array and --tile-rows of the commands that report sc_cost.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/research/cost.h"

namespace CLI {
class App;
}

namespace stoch::cli {

struct CostFlags {
  std::string array;  // "": none
  std::vector<int64_t> tile_rows = CostOptions{}.tile_rows;

  bool asks() const { return !array.empty(); }
};
void AddCostOptions(CLI::App& command, CostFlags* flags);

// Errors: InvalidInput, also where no run is in SC and something is asked for.
CostOptions ParseCostOptions(const CostFlags& flags, bool any_sc);

// A collector for engines in SC, else null.
std::unique_ptr<ScCostCollector> CollectCost(Engine& engine, const CostOptions& options);

}  // namespace stoch::cli
