// SPDX-License-Identifier: Apache-2.0
// Grammars made into guides for the tokens of one vocabulary. Wraps the C++ core of xgrammar.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "engine/request/grammar.h"
#include "loader/sha256.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch {

// Why this build compiles no grammars; "" where it does.
std::string WhyNoGrammars();

// Threads: any; one compiles at a time.
class GrammarCompiler {
 public:
  // vocab_size: of the model, which may have more ids than the tokenizer. The tokenizer outlives this.
  GrammarCompiler(const Tokenizer& tokenizer, int64_t vocab_size);
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Looks at the vocabulary, which takes a tenth of a second for a large one; otherwise the first grammar does.
  void Prepare();
  // Compiles it, or finds it among those compiled last. May take as long and as much memory as the grammar asks for:
  // GrammarChecker bounds what a stranger's may.
  // Errors: InvalidInput: none in this build; a grammar that is none, or has what is not supported, with the reason.
  void Compile(const GrammarSpec& grammar);
  // GuideMaker.
  std::unique_ptr<TokenGuide> Guide(const GrammarSpec& grammar, std::span<const int32_t> stop_ids);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The maker of a compiler that it keeps.
inline GuideMaker MakerOf(std::shared_ptr<GrammarCompiler> compiler) {
  return [compiler = std::move(compiler)](const GrammarSpec& grammar, std::span<const int32_t> stop_ids) {
    return compiler->Guide(grammar, stop_ids);
  };
}

// What a grammar is known by.
inline std::string DigestOf(const GrammarSpec& grammar) {
  return Sha256Hex(std::to_string(static_cast<int>(grammar.kind)) + ":" + grammar.text);
}

}  // namespace stoch
