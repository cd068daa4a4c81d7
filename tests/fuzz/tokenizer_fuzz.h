// SPDX-License-Identifier: Apache-2.0
// What the tokenizer fuzz targets ask of every tokenizer that loads.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "loader/tokenizer/tokenizer.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch::fuzz {

inline void Check(bool condition) {
  if (!condition) std::abort();
}

// Runs body; InvalidInput is allowed if it is one line.
template <typename Body>
void MayRefuse(const Body& body) {
  try {
    body();
  } catch (const InvalidInput& error) {
    Check(std::strchr(error.what(), '\n') == nullptr && *error.what() != '\0');
  }
}

inline bool IsUtf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const size_t size = Utf8CharSize(text, pos);
    if (size == 0) return false;
    pos += size;
  }
  return true;
}

// Streaming gives the text that decoding gives, and only whole characters.
inline void CheckDecoding(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamDecoder stream(tokenizer);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string part = stream.Push(id);
    Check(IsUtf8(part) && IsUtf8(tokenizer.TokenText(id)));
    streamed += part;
  }
  streamed += stream.Flush();
  Check(streamed == tokenizer.Decode(ids) && IsUtf8(streamed));
}

inline void CheckTokenizer(const Tokenizer& tokenizer) {
  Check(tokenizer.vocab_size() > 0);
  for (const char* text : {"", " ", "Hello world, 12 ▁ é\n\n", "  ab ab<s></s><|eot_id|> \t x"}) {
    for (const bool special : {false, true}) {
      MayRefuse([&] {
        const auto ids = tokenizer.Encode(text, {.add_bos = special, .parse_special = special, .at_start = !special});
        for (const int32_t id : ids) Check(id >= 0 && id < tokenizer.vocab_size());
        CheckDecoding(tokenizer, ids);
      });
    }
  }
  for (const int32_t id : tokenizer.eos_ids()) Check(id >= 0 && id < tokenizer.vocab_size());
}

}  // namespace stoch::fuzz
