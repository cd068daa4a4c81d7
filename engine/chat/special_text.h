// SPDX-License-Identifier: Apache-2.0
// Keeps the names of special tokens text where a conversation writes them: no message can pretend to be another one.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "loader/json_types.h"
#include "loader/tokenizer/added.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch {

// A mark is a Unicode noncharacter (U+FDD0..U+FDEF) in the middle of such a name. It goes through a template as a letter
// does, and is taken out once the special tokens that the template writes have been found (EncodeOptions::removed).
// Tokens that a tokenizer looks for in any text, such as <think> of Qwen3, are no special tokens.
// Immutable; threads: safe.
class SpecialText {
 public:
  // The mark is none that `source`, the template, writes.
  SpecialText(const Tokenizer& tokenizer, std::string_view source);

  // Marks every name in the strings of `value` and in the names of its members, also one that neighbouring text parts of
  // a list make together. Returns the mark, "" where nothing had to be marked.
  // Errors: InvalidInput for text that is no UTF-8, for a name of one character, and where every noncharacter is used.
  std::string Mark(OrderedJson* value) const;

  // Where the template wrote a mark as JSON escapes it, it becomes the mark itself.
  static std::string Unescaped(std::string text, std::string_view mark);

 private:
  static constexpr size_t kMarks = 32;
  struct Use {
    bool has_name = false;
    std::array<bool, kMarks> used = {};  // noncharacters
  };
  static void NoteMarks(std::string_view text, Use* use);
  void Look(const OrderedJson& value, Use* use) const;
  bool HasName(std::string_view text) const;
  OrderedJson Marked(const OrderedJson& value, std::string_view mark) const;
  std::string MarkedText(std::string text, std::string_view mark) const;
  void MarkJoined(std::string_view mark, OrderedJson* list) const;

  AddedTokenFinder names_;
  Use source_;
};

}  // namespace stoch
