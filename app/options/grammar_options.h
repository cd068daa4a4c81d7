// SPDX-License-Identifier: Apache-2.0
// --json-schema, --regex, --grammar and --choice: what an answer has to be.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/grammar/grammar_compiler.h"
#include "engine/request/grammar.h"

namespace CLI {
class App;
}

namespace stoch::cli {

struct GrammarOptions {
  std::string json_schema;  // file
  std::string regex;
  std::string grammar;  // file
  std::vector<std::string> choices;
};

// One of them at most; none next to --ignore-eos, which the command has.
void AddGrammarOptions(CLI::App& command, GrammarOptions* options);
// Reads and compiles what was asked for. Errors: InvalidInput naming the option.
GrammarSpec ReadGrammar(const GrammarOptions& options, GrammarCompiler& compiler);

}  // namespace stoch::cli
