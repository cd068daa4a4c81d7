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
  // "off"; "ngram"; "auto": ngram where rows of a pass have the bits of single steps, else off; or a model as --model takes it.
  std::string speculate = "off";
  int64_t draft_tokens = 7;
  bool names_model() const { return speculate != "off" && speculate != "auto" && speculate != "ngram"; }
};

void AddSpeculationOptions(CLI::App& command, SpeculationOptions* options);
// Where a draft model is named, make_drafts is left to who loads it.
// Requires: precision and SC settings of the engine are there, which `auto` asks. Errors: InvalidInput for a number of drafts out
// of range.
void Apply(const SpeculationOptions& options, EngineOptions* engine);

}  // namespace stoch::cli
