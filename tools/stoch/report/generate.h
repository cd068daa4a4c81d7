// What `stoch generate` says about a finished generation.
#pragma once

#include <string>

#include "engine/engine.h"
#include "engine/generate.h"

namespace stoch::cli {

// What: the one JSON object of --json.
std::string ReportJson(Engine& engine, const GenerateRequest& request, const GenerateResult& result);

// What: one line on standard error: tokens, ms/token, time to first token, what it ran on.
void PrintSummary(Engine& engine, const GenerateRequest& request, const GenerateResult& result);

}  // namespace stoch::cli
