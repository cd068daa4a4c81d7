// SPDX-License-Identifier: Apache-2.0
// What the writers of chat formats share. Internal to this folder.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "loader/tokenizer/chat/chat_template.h"

namespace stoch {

// A prompt under construction: special tokens, and the text between them, which is encoded as one piece, as it is when
// the whole rendered prompt is tokenized.
class PromptBuilder {
 public:
  explicit PromptBuilder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void Token(int32_t id) { pieces_.push_back({id, ""}); }
  void Text(std::string_view text) {
    if (text.empty()) return;
    if (pieces_.empty() || pieces_.back().id >= 0) pieces_.push_back({-1, ""});
    pieces_.back().text += text;
  }

  std::vector<int32_t> Ids() const {
    std::vector<int32_t> ids;
    for (const Piece& piece : pieces_) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
        continue;
      }
      const auto text =
          tokenizer_.Encode(piece.text, {.add_bos = false, .parse_special = false, .at_start = ids.empty()});
      ids.insert(ids.end(), text.begin(), text.end());
    }
    return ids;
  }
  std::string Rendered() const {
    std::string rendered;
    for (const Piece& piece : pieces_) rendered += piece.id >= 0 ? tokenizer_.TokenText(piece.id) : piece.text;
    return rendered;
  }

 private:
  struct Piece {
    int32_t id = -1;  // -1: text
    std::string text;
  };

  const Tokenizer& tokenizer_;
  std::vector<Piece> pieces_;
};

// Errors: InvalidInput naming format and token where the tokenizer lacks it.
int32_t RequireToken(const Tokenizer& tokenizer, ChatFormat format, std::string_view written);
int32_t RequireBos(const Tokenizer& tokenizer, ChatFormat format);
int32_t RequireEos(const Tokenizer& tokenizer, ChatFormat format);

// The Mistral formats. Requires: at least one message, of known roles.
PromptBuilder WriteMistral(const Tokenizer& tokenizer, ChatFormat format, const std::vector<ChatMessage>& messages);

}  // namespace stoch
