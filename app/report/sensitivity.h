// SPDX-License-Identifier: Apache-2.0
// Divergences of single products, in the forms of `stoch profile`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "research/calibrate/sensitivity.h"

namespace stoch::cli {

struct SensitivityReport {
  std::string model, model_sha256, text_sha256, config;
  int64_t ctx = 0, windows = 0;
  int bits = 0;                             // of the integers
  std::vector<OperatorSensitivity> ranked;  // the order of rows
};

// Columns operator, layer, KL in streams, KL in integers, difference; in the order given.
std::string SensitivityTable(std::span<const OperatorSensitivity> ranked, int bits);

// format: "md", the table alone; "csv" and "jsonl", a row or line for each product; "json", one object.
std::string FormatSensitivity(const SensitivityReport& report, const std::string& format);

}  // namespace stoch::cli
