// SPDX-License-Identifier: Apache-2.0
// A tokenizer for random models: id i is one printable character; 1 and 2 are special, 95 is half a character.
#pragma once

#include <string>

#include "loader/tokenizer/tokenizer.h"

namespace stoch::test {

class LettersTokenizer : public Tokenizer {
 public:
  int32_t vocab_size() const override { return 96; }
  std::optional<int32_t> bos_id() const override { return 1; }
  std::vector<int32_t> eos_ids() const override { return {2}; }
  bool IsSpecial(int32_t id) const override { return id == 1 || id == 2; }
  std::string_view kind() const override { return "letters"; }
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<int32_t> ids;
    if (options.add_bos) ids.push_back(1);
    for (const char c : text) ids.push_back(c - ' ');
    return ids;
  }
  std::string TokenBytes(int32_t id) const override {
    if (IsSpecial(id)) return "";
    return id == 95 ? "\xC3" : std::string(1, static_cast<char>(' ' + id));
  }
  bool strips_leading_space() const override { return true; }
  std::string Decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += TokenBytes(id);
    return text;
  }
  std::string TokenText(int32_t id) const override { return TokenBytes(id); }
  std::optional<int32_t> FindSpecial(std::string_view) const override { return std::nullopt; }
  std::string chat_template() const override { return ""; }
};

}  // namespace stoch::test
