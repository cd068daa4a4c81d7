// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/options/cost_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "kernels/base/error.h"

namespace stoch::cli {

void AddCostOptions(CLI::App& command, CostFlags* flags) {
  command.add_option("--array", flags->array,
                     "R,C,K[,FILL]: count cycles of an array of R x C multipliers that take K dimensions at once");
  command
      .add_option("--tile-rows", flags->tile_rows,
                  "Rows that run at the longest length among them, for averages; several with commas")
      ->delimiter(',')
      ->capture_default_str();
}

CostOptions ParseCostOptions(const CostFlags& flags, bool any_sc) {
  constexpr int64_t kMostRows = 1 << 20;
  CostOptions options;
  options.tile_rows = flags.tile_rows;
  for (const int64_t rows : flags.tile_rows) {
    if (rows < 1 || rows > kMostRows) {
      throw InvalidInput(fmt::format("--tile-rows {}: allowed is 1..{}", rows, kMostRows));
    }
  }
  if (flags.array.empty()) return options;
  if (!any_sc) throw InvalidInput("--array: has no meaning without a run in SC");
  options.array = ParseArrayShape(flags.array);
  return options;
}

std::unique_ptr<ScCostCollector> CollectCost(Engine& engine, const CostOptions& options) {
  if (engine.options().precision != Precision::kSc) return nullptr;
  return std::make_unique<ScCostCollector>(engine, options);
}

}  // namespace stoch::cli
