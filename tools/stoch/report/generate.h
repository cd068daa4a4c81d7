// SPDX-License-Identifier: Apache-2.0
// What `stoch generate` says about a finished generation.
#pragma once

#include <string>

#include "engine/engine.h"
#include "engine/generate.h"

namespace stoch::cli {

// The one JSON object of --json.
std::string ReportJson(Engine& engine, const GenerateRequest& request, const GenerateResult& result);

// One line on standard error: tokens, ms/token, time to first token, what it ran on.
void PrintSummary(Engine& engine, const GenerateRequest& request, const GenerateResult& result);

}  // namespace stoch::cli
