// SPDX-License-Identifier: Apache-2.0
// Cases recorded for the second part of the research suite (schema stoch-research2-golden-v1), run by `stoch verify
// --goldens` and tests.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "kernels/backend.h"
#include "loader/checkpoint/safetensors.h"
#include "research/golden/golden.h"

namespace stoch {

// Whether this version computes what a case records; a kind that it does not have is left out, and counted.
bool IsResearch2Kind(const nlohmann::json& fields);

// Runs one case: products by the readable reference and, bit for bit, by `backend`.
// Errors: InvalidInput for a case that is not of the schema or of a kind that is none.
GoldenResult RunResearch2Golden(Backend& backend, const SafetensorsFile& file, const nlohmann::json& fields);

}  // namespace stoch
