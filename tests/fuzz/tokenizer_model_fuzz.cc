// SPDX-License-Identifier: Apache-2.0
// Any bytes are refused as a tokenizer.model, tiktoken or SentencePiece, with InvalidInput, or make a tokenizer that
// encodes and decodes.
#include "loader/tokenizer/kinds.h"
#include "tests/fuzz/tokenizer_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string content(reinterpret_cast<const char*>(data), size);
  stoch::TokenizerSettings settings;
  settings.legacy = size % 2 == 0;
  stoch::fuzz::MayRefuse([&] {
    const auto tokenizer = stoch::LooksLikeTiktoken(content)
                               ? stoch::MakeTiktokenTokenizer(content, "fuzz", settings)
                               : stoch::MakeSentencePieceTokenizer(content, "fuzz", settings);
    stoch::fuzz::CheckTokenizer(*tokenizer);
  });
  return 0;
}
