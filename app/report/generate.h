// SPDX-License-Identifier: Apache-2.0
// What `stoch generate` says about a finished generation.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "engine/engine.h"
#include "engine/generate.h"
#include "research/cost.h"

namespace stoch::cli {

// The one JSON object of --json; cost: of a run in SC.
nlohmann::ordered_json GenerateJson(Engine& engine, const GenerateRequest& request, const GenerateResult& result,
                                    const std::optional<ScCost>& cost);

// The same as text, without a cost.
std::string ReportJson(Engine& engine, const GenerateRequest& request, const GenerateResult& result);

// On standard error: one line of tokens, ms/token, time to first token, what it ran on; and the average stream length,
// with cycles if an array is given.
void PrintSummary(Engine& engine, const GenerateRequest& request, const GenerateResult& result,
                  const std::optional<ScCost>& cost);

}  // namespace stoch::cli
