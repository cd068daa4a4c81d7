// SPDX-License-Identifier: Apache-2.0
// The files that an SC configuration refers to: threshold tables, smoothing, masks, multiplier tables, functions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/sc_model_config.h"

namespace stoch {

struct ScFileOptions {
  std::string mp = {};                 // "": none
  std::string mp_normalise = "fixed";  // or call
  std::string smooth = {};
  std::string more_smooth = {};  // a second file, of other names
  std::string mask = {};
  int mask_bits = 0;  // 0: as the mask says

  bool empty() const { return mp.empty() && smooth.empty() && mask.empty(); }
};

// A multiplier table with its sha256. Errors: as ParseMultiplierFile.
std::shared_ptr<MultiplierTable> ReadMultiplierTable(const std::string& path, ScTableCode code, ScTableOrder order);

// Counts with their sha256. Errors: as ParseCountFile.
std::shared_ptr<CountTable> ReadCountTable(const std::string& path);

// Reads the files, and the tables that settings name, into `config`; a mask is applied as settings of arith are.
// Returns notices about keys that are not known, and about gates (GateNotices).
// Errors: InvalidInput, one sentence with file, key, value and what is allowed.
std::vector<std::string> ReadScFiles(const ScFileOptions& options, ScModelConfig* config);

}  // namespace stoch
