// SPDX-License-Identifier: Apache-2.0
// The texts of `stoch bench --speculate`: prompts, and for models with random weights the answers too, which such a model
// would not give.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch::cli {

// One kind of text, of so many sequences.
struct BenchText {
  std::string name;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<int32_t>> answers;  // that are told (told_sequence.h); none: the model gives its own

  int64_t longest_prompt() const;
};

// `edits`, a text that stands in the prompt twice and is begun a third time with another name; `story`, the beginning of one.
std::vector<BenchText> PromptTexts(const Tokenizer& tokenizer, int64_t sequences);

// The same with answers of `tokens` tokens: of `edits` the text with the other name, then with further names, as it was asked
// for; of `story` what the demo model tells, sampled. Ids beyond the vocabulary are taken modulo its size.
// demo: with its tokenizer and room for one sequence. Errors: InvalidInput for more tokens than its context has.
std::vector<BenchText> ToldTexts(Engine& demo, const Tokenizer& tokenizer, int64_t vocab_size, int64_t sequences,
                                 int64_t tokens);

// Answers that a draft model guesses so often as the name says: its own greedy ones, but for tokens that are drawn and
// replaced by others. draft: with room for as many sequences of kGuessedPromptTokens + tokens tokens.
inline constexpr int64_t kGuessedPromptTokens = 24;
std::vector<BenchText> GuessedTexts(Engine& draft, int64_t sequences, int64_t tokens);

}  // namespace stoch::cli
