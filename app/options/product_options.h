// SPDX-License-Identifier: Apache-2.0
// Options of stoch inspect --product.
#pragma once

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace stoch::cli {

struct ProductOptions {
  bool report = false;
  std::string op;           // one operator, as q_proj or 3.q_proj; "": all
  std::string csv, counts;  // files; "": none

  bool given() const { return report || !op.empty() || !csv.empty() || !counts.empty(); }
};
void AddProductOptions(CLI::App& command, ProductOptions* options);

}  // namespace stoch::cli
