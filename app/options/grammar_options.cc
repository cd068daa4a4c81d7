// SPDX-License-Identifier: Apache-2.0
#include "app/options/grammar_options.h"

#include <CLI/CLI.hpp>
#include <filesystem>

#include "kernels/base/error.h"
#include "loader/file.h"

namespace stoch::cli {
namespace {

// Errors: InvalidInput for a file that cannot be read, or is larger than any grammar.
std::string TextOf(const std::string& path) {
  const MappedFile file{std::filesystem::path(path)};
  if (file.bytes().size() > kMaxGrammarBytes) {
    throw InvalidInput(path + " has " + std::to_string(file.bytes().size()) + " bytes; allowed are " +
                       std::to_string(kMaxGrammarBytes));
  }
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

void AddGrammarOptions(CLI::App& command, GrammarOptions* options) {
  CLI::Option* all[] = {
      command.add_option("--json-schema", options->json_schema, "The text is JSON that the schema in this file allows"),
      command.add_option("--regex", options->regex, "The text matches this from its beginning to its end"),
      command.add_option("--grammar", options->grammar,
                         "The text is of the grammar in this file, in GBNF notation; its first rule is root"),
      command.add_option("--choice", options->choices, "The text is this, or another --choice")
          ->allow_extra_args(false)};
  for (CLI::Option* option : all) {
    for (CLI::Option* other : all) {
      if (other != option) option->excludes(other);
    }
    option->excludes(command.get_option("--ignore-eos"));
  }
}

GrammarSpec ReadGrammar(const GrammarOptions& options, GrammarCompiler& compiler) {
  const char* name = "";
  try {
    GrammarSpec grammar;
    if (!options.json_schema.empty()) {
      name = "--json-schema";
      grammar = {GrammarSpec::Kind::kJsonSchema, TextOf(options.json_schema)};
    } else if (!options.regex.empty()) {
      name = "--regex";
      grammar = {GrammarSpec::Kind::kRegex, options.regex};
    } else if (!options.grammar.empty()) {
      name = "--grammar";
      grammar = {GrammarSpec::Kind::kEbnf, TextOf(options.grammar)};
    } else if (!options.choices.empty()) {
      name = "--choice";
      grammar = ChoiceGrammar(options.choices);
    }
    if (!grammar.empty()) compiler.Compile(grammar);
    return grammar;
  } catch (const InvalidInput& error) {
    throw InvalidInput(std::string(name) + ": " + error.what());
  }
}

}  // namespace stoch::cli
