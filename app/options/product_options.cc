// SPDX-License-Identifier: Apache-2.0
#include "app/options/product_options.h"

#include <CLI/CLI.hpp>

#include "app/options/value_rules.h"

namespace stoch::cli {

void AddProductOptions(CLI::App& command, ProductOptions* options) {
  command.add_flag("--product", options->report,
                   "Report errors and correlation of every product of --sc in streams or counts, without a model");
  command.add_option("--op", options->op, "Of --product: one operator, as q_proj, or of a layer, as 3.q_proj");
  command.add_option("--csv", options->csv, "Of --product: write mask,a,b,count,ideal of the one product to a file");
  command.add_option("--counts", options->counts,
                     "Of --product: write the counts of the one product (.npy), which gate=counts reads back");
  KeepInputs(command, "--csv");
  KeepInputs(command, "--counts");
}

}  // namespace stoch::cli
