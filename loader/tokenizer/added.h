// SPDX-License-Identifier: Apache-2.0
// Tokens that are cut out of the text before anything else is done with it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stoch {

// The meaning of the flags is that of Hugging Face's AddedToken.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool lstrip = false;      // takes the white space before it along
  bool rstrip = false;      // and after it
  bool normalized = false;  // looked for in the normalized text, in its normalized form
  std::string text = {};    // what it is in running text, where that is not `content`
};

// A piece of text (id < 0), or an added token.
struct TextSegment {
  int32_t id = -1;
  std::string_view text;
  size_t begin = 0;  // byte offset in the text that was split
};

// Finds added tokens, leftmost first, then longest. Immutable; threads: safe.
// Source: huggingface/tokenizers, tokenizer/added_vocabulary.rs (find_matches).
class AddedTokenFinder {
 public:
  // `tokens` with the text each is looked for as.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  // The segments of text, in order, none empty. Special tokens stay text unless parse_special.
  std::vector<TextSegment> Split(std::string_view text, bool parse_special) const;

 private:
  struct Node {
    int32_t token = -1;  // index in tokens_
    std::vector<std::pair<uint8_t, uint32_t>> children;
  };
  const AddedToken* LongestAt(std::string_view text, size_t pos) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::vector<bool> starts_;  // per byte: some token begins with it
};

}  // namespace stoch
