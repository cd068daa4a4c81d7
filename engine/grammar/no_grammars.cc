// SPDX-License-Identifier: Apache-2.0
// GrammarCompiler of a build without xgrammar.
#include "engine/grammar/grammar_compiler.h"
#include "kernels/base/error.h"

namespace stoch {

std::string WhyNoGrammars() {
  return "this build has no grammars: it was configured with STOCH_GRAMMAR=OFF, or without the xgrammar that "
         "tools/fetch_xgrammar fetches";
}

struct GrammarCompiler::State {};

GrammarCompiler::GrammarCompiler(const Tokenizer& /*tokenizer*/, int64_t /*vocab_size*/) {}
GrammarCompiler::~GrammarCompiler() = default;
void GrammarCompiler::Prepare() {}
void GrammarCompiler::Compile(const GrammarSpec& /*grammar*/) { throw InvalidInput(WhyNoGrammars()); }

std::unique_ptr<TokenGuide> GrammarCompiler::Guide(const GrammarSpec& /*grammar*/,
                                                   std::span<const int32_t> /*stop_ids*/) {
  throw InvalidInput(WhyNoGrammars());
}

}  // namespace stoch
