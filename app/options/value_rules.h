// SPDX-License-Identifier: Apache-2.0
// Checks that every option of every command gets: no empty value, no number beyond its type. Errors name an option as it was
// typed.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace stoch::cli {

// Declared on all options of a command, after these:
//   - an empty value, as of a variable of a shell that is not set, unless the value is a text or settings (--prompt, --sc):
//     defaults that mean "none" would take it without a word;
//   - a word that is no number, or none that 64 bits hold, where a number is expected. CLI11 says no more of it than that it
//     could not convert it, and takes numbers beyond 64 bits, "nan" and "inf";
//   - a value of a flag that is neither true nor false.
// Errors: CLI11's ValidationError while the command line is parsed.
void AddValueRules(CLI::App& command);

// The option takes no other of its command, but those named: "--file excludes --merge", of the first that is declared. Where
// it is given, those are not taken from the environment or --config FILE either, and help does not list them.
// Errors: CLI11's ExcludesError while the command line is parsed.
void ExcludeOthers(CLI::App& command, const std::string& option, const std::vector<std::string>& allowed);

// The file of this option is written, so that it may be none that another option names: work would end with its input, or
// with another of its results, overwritten.
// Errors: CLI11's ValidationError while the command line is parsed.
void KeepInputs(CLI::App& command, const std::string& output);

// "--shard=" as "--shard" and "": CLI11 takes the next word for its value.
std::vector<std::string> WithEmptyValues(const std::vector<std::string>& words);

// The message of an error of CLI11, which names an option by its first long name, with the name that was typed instead: "-n", or
// MODEL of one that stands by itself.
std::string NamedAsTyped(const std::string& message, const CLI::App& command, const std::vector<std::string>& words);

}  // namespace stoch::cli
