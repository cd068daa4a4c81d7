// SPDX-License-Identifier: Apache-2.0
// --speculate and --draft-tokens: who guesses tokens that passes check.
#pragma once

#include <cstdint>
#include <string>

#include "engine/engine_options.h"

namespace CLI {
class App;
}

namespace stoch::cli {

struct SpeculationOptions {
  std::string speculate = "off";  // or "ngram"
  int64_t draft_tokens = 7;
};

void AddSpeculationOptions(CLI::App& command, SpeculationOptions* options);
// Errors: InvalidInput for another name, or a number of drafts out of range.
void Apply(const SpeculationOptions& options, EngineOptions* engine);

}  // namespace stoch::cli
