// SPDX-License-Identifier: Apache-2.0
#include "engine/request/grammar.h"

#include "kernels/base/error.h"

namespace stoch {
namespace {

// A string of GBNF: quotes, backslashes and control characters escaped.
std::string Quoted(const std::string& text) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < ' ' || byte == 0x7f) {
      quoted += std::string("\\x") + kDigits[byte / 16] + kDigits[byte % 16];
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace

GrammarSpec ChoiceGrammar(const std::vector<std::string>& choices) {
  if (choices.empty()) throw InvalidInput("has no choices; expected at least one");
  if (choices.size() > kMaxGrammarChoices) {
    throw InvalidInput("has " + std::to_string(choices.size()) + " choices; allowed are " +
                       std::to_string(kMaxGrammarChoices));
  }
  std::string text = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].empty()) throw InvalidInput("choice " + std::to_string(i) + " is empty");
    text += (i == 0 ? "" : " | ") + Quoted(choices[i]);
  }
  GrammarSpec grammar = {GrammarSpec::Kind::kEbnf, text + "\n"};
  Validate(grammar);
  return grammar;
}

void Validate(const GrammarSpec& grammar) {
  if (grammar.text.size() > kMaxGrammarBytes) {
    throw InvalidInput("has " + std::to_string(grammar.text.size()) + " bytes; allowed are " +
                       std::to_string(kMaxGrammarBytes));
  }
  const bool has_text = grammar.kind != GrammarSpec::Kind::kNone && grammar.kind != GrammarSpec::Kind::kJson;
  if (has_text && grammar.text.empty()) throw InvalidInput("is empty");
}

}  // namespace stoch
