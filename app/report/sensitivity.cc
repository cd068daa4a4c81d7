// SPDX-License-Identifier: Apache-2.0
#include "app/report/sensitivity.h"

#include <fmt/format.h>

#include "app/report/table.h"

namespace stoch::cli {

std::string SensitivityTable(std::span<const OperatorSensitivity> ranked, int bits) {
  Table table({"operator", "layer", "KL in streams", fmt::format("KL in int{}", bits), "difference"});
  for (const OperatorSensitivity& product : ranked) {
    table.Add({std::string(ScOperatorName(product.id)), std::to_string(product.layer),
               fmt::format("{:.3e}", product.in_streams), fmt::format("{:.3e}", product.in_integers),
               fmt::format("{:.3e}", product.gain())});
  }
  return table.Markdown();
}

}  // namespace stoch::cli
