// SPDX-License-Identifier: Apache-2.0
// A grammar that an answer has to be of, as a request names it, and who follows an answer through one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stoch {

struct GrammarSpec {
  enum class Kind : uint8_t {
    kNone,           // any text
    kJson,           // any JSON object
    kJsonSchema,     // JSON that a schema allows
    kRegex,          // the whole of the answer matches it
    kEbnf,           // a grammar in GBNF notation, whose first rule is `root`
    kStructuralTag,  // xgrammar's JSON of texts around schemas; for calls of tools
  };
  Kind kind = Kind::kNone;
  std::string text;  // the schema, regular expression or grammar; empty for
                     // kNone and kJson

  bool empty() const { return kind == Kind::kNone; }
  bool operator==(const GrammarSpec&) const = default;
};

inline constexpr size_t kMaxGrammarBytes = 64 << 10;
inline constexpr size_t kMaxGrammarChoices = 1024;

// One of these texts and nothing else. Errors: InvalidInput for none, too many, or an empty one.
GrammarSpec ChoiceGrammar(const std::vector<std::string>& choices);

// Errors: InvalidInput for a text of more than kMaxGrammarBytes, or none where there has to be one.
void Validate(const GrammarSpec& grammar);

// Follows one answer, token by token, and says which ones may come next.
// Threads: one at a time.
class TokenGuide {
 public:
  virtual ~TokenGuide() = default;
  // Sets the bits of the tokens that may follow those so far (TokenPick::allowed), one at least; the stop ids are among them
  // where the answer may end.
  // Requires: TokenMaskWords(vocab_size) words.
  // Errors: InvalidInput where no token may follow, and where this takes so long that other requests would wait for it.
  virtual void Fill(std::span<uint32_t> mask) = 0;
  // The next token. Errors: InvalidInput for one that Fill does not allow, and as Fill.
  virtual void Accept(int32_t id) = 0;
};

// A guide of a new answer that ends with one of the stop ids that are no text. Errors: InvalidInput for a grammar that is
// none, with the reason, and where there is no such id.
// Threads: several at once.
using GuideMaker =
    std::function<std::unique_ptr<TokenGuide>(const GrammarSpec& grammar, std::span<const int32_t> stop_ids)>;

}  // namespace stoch
