// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/reason.h"

#include <algorithm>
#include <regex>
#include <utility>

namespace stoch {
namespace {

constexpr size_t kMostBytes = 400;

// A part of a message that is cut out (`put` is empty), or put in other words. `found` is a regular expression.
struct Change {
  const char* found;
  const char* put;
};

constexpr Change kChanges[] = {
    // xgrammar says how it would go on; here the grammar is refused.
    {R"(; ?(ignoring|falling back|matching the character) .*$)", ""},
    {R"(\. (It is ignored|The character itself will be matched)\.?$)", ""},
    {R"( and is ignored in regex)", ""},
    {R"(Support for allOf with multiple options is still ongoing)", "several schemas in \"allOf\" are not supported"},
    {R"( is not supported yet)", " is not supported"},
    {R"(JSON schema error: )", ""},
};

std::string Replaced(const std::string& text, const char* found, const std::string& put) {
  return std::regex_replace(text, std::regex(found), put);
}

}  // namespace

std::string ReasonOf(GrammarSpec::Kind kind, const std::string& said) {
  std::string words = said.substr(0, 4 * kMostBytes);
  std::replace_if(
      words.begin(), words.end(), [](unsigned char c) { return c < ' '; }, ' ');
  // "Check failed: (condition) is false: reason"
  constexpr const char* kFalse = ") is false: ";
  if (words.find("heck failed: (") != std::string::npos && words.find(kFalse) != std::string::npos) {
    words = words.substr(words.find(kFalse) + std::string(kFalse).size());
  }
  const bool is_own = kind == GrammarSpec::Kind::kEbnf;
  words = Replaced(words, R"(EBNF (lexer|parser) error at (line [0-9]+, column [0-9]+): )", is_own ? "$2: " : "");
  words = Replaced(words, R"(Regex parsing (error|warning) at position ([0-9]+): )",
                   kind == GrammarSpec::Kind::kRegex ? "character $2: " : "in a pattern, character $2: ");
  for (const auto& [found, put] : kChanges) words = Replaced(words, found, put);
  const size_t end = words.find_last_not_of(" .");
  words.resize(std::min(end == std::string::npos ? 0 : end + 1, kMostBytes));
  return words.empty() ? "has what is not supported" : words;
}

}  // namespace stoch
