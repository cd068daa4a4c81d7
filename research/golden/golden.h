// SPDX-License-Identifier: Apache-2.0
// Cases recorded for the research suite (schema stoch-research-golden-v1), run by `stoch verify --goldens` and tests.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kernels/backend.h"
#include "loader/checkpoint/safetensors.h"

namespace stoch {

struct GoldenResult {
  bool passed = false;
  std::string detail;
};

// Runs one case: products by the readable reference and, bit for bit, by `backend`; everything else by what the
// subcommands use. Errors: InvalidInput for a case that is not of the schema or of an unknown kind.
GoldenResult RunResearchGolden(Backend& backend, const SafetensorsFile& file, const nlohmann::json& fields);

}  // namespace stoch
