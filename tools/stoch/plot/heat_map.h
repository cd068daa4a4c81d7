// SPDX-License-Identifier: Apache-2.0
// A matrix of numbers as colours.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace stoch::cli {

struct HeatMap {
  std::string title, x_label, y_label;
  std::string value_label;                    // of the colour bar
  std::vector<std::string> columns;           // left to right
  std::vector<std::string> rows;              // top to bottom
  std::vector<std::optional<double>> values;  // [rows][columns]; absent: grey
  bool logarithmic = false;                   // colours by the logarithm: values above 0
};

// Bits:   the same text for the same map.
// Errors: InvalidInput where the sizes disagree, no value is there, one is not finite, or not above 0 and logarithmic.
std::string HeatMapSvg(const HeatMap& map);

}  // namespace stoch::cli
