// SPDX-License-Identifier: Apache-2.0
#include "app/options/speculation_options.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "engine/speculation/ngram_drafts.h"
#include "kernels/base/error.h"

namespace stoch::cli {

void AddSpeculationOptions(CLI::App& command, SpeculationOptions* options) {
  command
      .add_option(
          "--speculate", options->speculate,
          "Who guesses tokens that are checked in one pass, where that is faster; the text is the same. ngram: what "
          "followed the last three before; or a smaller model with the same tokenizer, as --model takes it; off: "
          "nobody; auto: ngram where rows of a pass have the bits of single steps")
      ->capture_default_str();
  command.add_option("--draft-tokens", options->draft_tokens, "Guesses that a pass checks of a sequence at most")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, kMaxDraftTokens));
}

void Apply(const SpeculationOptions& options, EngineOptions* engine) {
  if (options.draft_tokens < 1 || options.draft_tokens > kMaxDraftTokens) {
    throw InvalidInput("draft_tokens = " + std::to_string(options.draft_tokens) + ": allowed is 1.." +
                       std::to_string(kMaxDraftTokens));
  }
  const bool is_auto = options.speculate == "auto";
  if (options.speculate == "off" || (is_auto && !WhyNoDrafts(*engine).empty())) return;
  engine->draft_tokens = options.draft_tokens;
  if (is_auto || options.speculate == "ngram") engine->make_drafts = [] { return std::make_unique<NgramDrafts>(); };
}

}  // namespace stoch::cli
