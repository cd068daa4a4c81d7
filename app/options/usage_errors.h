// SPDX-License-Identifier: Apache-2.0
// Messages for command lines that CLI11 refuses.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace stoch::cli {

// The message of an error of CLI11, in words of who typed `words` (of WithEmptyValues):
//   - words in front of the command are told so;
//   - an unknown option or command comes before whatever else is wrong, as its value is taken for MODEL, with the name that is near;
//   - a flag with an empty value, words that nothing takes, and several where one is taken are quoted;
//   - an option has the name that was typed: "-n", or MODEL of one that stands by itself, where CLI11 has its first long name.
// Requires: `root` has parsed `words`, and its error is `error`.
std::string UsageError(const CLI::ParseError& error, const CLI::App& root, const std::vector<std::string>& words);

}  // namespace stoch::cli
