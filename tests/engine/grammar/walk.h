// SPDX-License-Identifier: Apache-2.0
// Answers that no model wrote: each token is drawn among those that a guide allows.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "engine/grammar/grammar_compiler.h"
#include "kernels/logit_queries.h"
#include "loader/tokenizer/tokenizer.h"

#define STOCH_SKIP_WITHOUT_GRAMMARS() \
  if (!WhyNoGrammars().empty()) GTEST_SKIP() << WhyNoGrammars()

namespace stoch::test {

inline std::vector<int32_t> Allowed(TokenGuide& guide, int64_t vocab) {
  std::vector<uint32_t> mask(static_cast<size_t>(TokenMaskWords(vocab)), 0xabcdef01u);
  guide.Fill(mask);
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < vocab; ++id) {
    if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) ids.push_back(id);
  }
  return ids;
}

// The text of one, of at most `most` tokens; "" where it was not at its end by then.
inline std::string Walk(TokenGuide& guide, const Tokenizer& tokenizer, int64_t vocab, std::mt19937_64& random,
                        int most = 2000) {
  std::string text;
  for (int i = 0; i < most; ++i) {
    const std::vector<int32_t> ids = Allowed(guide, vocab);
    const int32_t id = ids[random() % ids.size()];
    for (const int32_t eos : tokenizer.eos_ids()) {
      if (id == eos) return text;
    }
    text += tokenizer.TokenBytes(id);
    guide.Accept(id);
  }
  return "";
}

}  // namespace stoch::test
