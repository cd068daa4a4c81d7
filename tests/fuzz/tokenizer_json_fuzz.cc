// SPDX-License-Identifier: Apache-2.0
// Any bytes are refused as a tokenizer.json with InvalidInput, or make a tokenizer that encodes and decodes. The same
// bytes are tried as the small files next to it.
#include "loader/tokenizer/kinds.h"
#include "tests/fuzz/tokenizer_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  stoch::fuzz::MayRefuse([&] { stoch::fuzz::CheckTokenizer(*stoch::MakeHuggingFaceTokenizer(text, "fuzz", {})); });
  for (const auto read :
       {stoch::ReadTokenizerConfig, stoch::ReadSpecialTokensMap, stoch::ReadAddedTokens, stoch::ReadGenerationConfig}) {
    stoch::fuzz::MayRefuse([&] {
      stoch::TokenizerSettings settings;
      read(text, "fuzz", settings);
    });
  }
  return 0;
}
