// SPDX-License-Identifier: Apache-2.0
// What the small files next to a tokenizer say: which tokens begin, end and pad a text, and how a chat is written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "loader/tokenizer/added.h"

namespace stoch {

struct TokenizerSettings {
  std::string where;  // the folder or file, for messages
  std::optional<std::string> bos_token, eos_token, pad_token;
  std::string tokenizer_class;
  std::optional<bool> add_bos;           // add_bos_token
  std::optional<bool> legacy;            // SentencePiece: a space in front of every piece of text, not only the first
  std::optional<bool> add_prefix_space;  // SentencePiece: false: never one in front
  std::vector<AddedToken> added;         // added_tokens_decoder, then added_tokens.json
  std::vector<int32_t> eos_ids;          // generation_config.json
  std::string chat_template;
};

// Reads one file's text into settings; what is already set stays (special_tokens_map.json after tokenizer_config.json).
// Errors: InvalidInput: not JSON, wrong types, ids out of range.
void ReadTokenizerConfig(std::string_view text, const std::string& where, TokenizerSettings& settings);
void ReadSpecialTokensMap(std::string_view text, const std::string& where, TokenizerSettings& settings);
void ReadAddedTokens(std::string_view text, const std::string& where, TokenizerSettings& settings);
void ReadGenerationConfig(std::string_view text, const std::string& where, TokenizerSettings& settings);

// tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json and chat_template.jinja of
// a folder, those that are there.
TokenizerSettings LoadTokenizerSettings(const std::filesystem::path& folder);

}  // namespace stoch
