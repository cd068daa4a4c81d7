// SPDX-License-Identifier: Apache-2.0
// What the small files next to a tokenizer say: which tokens begin, end and pad a text, and how a chat is written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "loader/tokenizer/added.h"

namespace stoch {

// A tokenizer class of transformers, and the tokens that it names where the files name none; "" where it names none
// either.
struct TokenizerClass {
  std::string_view name;
  std::string_view bos, eos, pad;
  // Begins a text with BOS as add_bos_token says (where that is absent: it does), whatever the post-processor of
  // tokenizer.json says. Other classes read the post-processor alone.
  bool reads_add_bos = false;
};

// The class called `name`, with or without "Fast" at the end; nullptr for one that is not known.
// Source: transformers 4.57.6, tokenization_llama_fast.py and its counterparts.
const TokenizerClass* FindTokenizerClass(std::string_view name);

// The class of a model whose tokenizer_config.json names none, by the model_type of its config.json; "" where it is not
// known. Source: TOKENIZER_MAPPING_NAMES of transformers 4.57.6.
std::string_view TokenizerClassOf(std::string_view model_type);

struct TokenizerSettings {
  std::string where;                                           // the folder or file, for messages
  std::optional<std::string> bos_token, eos_token, pad_token;  // "": the files say that there is none
  std::map<std::string, std::string> other_named;              // by unk_token and the like, and by extra_special_tokens
  std::vector<std::string> additional_named;                   // by additional_special_tokens
  std::string tokenizer_class;
  std::optional<bool> add_bos;           // add_bos_token
  std::optional<bool> legacy;            // SentencePiece: a space in front of every piece of text, not only the first
  std::optional<bool> add_prefix_space;  // SentencePiece: false: never one in front
  std::vector<AddedToken> added;         // added_tokens_decoder, or where that is absent added_tokens.json
  bool has_decoder = false;              // added_tokens_decoder is there
  std::vector<int32_t> eos_ids;          // generation_config.json
  std::string chat_template;

  // Whether a key names this one: bos_token, unk_token, additional_special_tokens, ...
  bool Names(std::string_view content) const;
};

// Reads one file's text into settings, in this order: special_tokens_map.json goes before what tokenizer_config.json
// says, and so do added_tokens.json's tokens before none, but where the config has an added_tokens_decoder neither is
// read. A token of added_tokens.json is special where a key names it.
// Source: transformers 4.57.6, PreTrainedTokenizerBase._from_pretrained.
// Errors: InvalidInput: not JSON, wrong types, ids out of range.
void ReadTokenizerConfig(std::string_view text, const std::string& where, TokenizerSettings& settings);
void ReadSpecialTokensMap(std::string_view text, const std::string& where, TokenizerSettings& settings);
void ReadAddedTokens(std::string_view text, const std::string& where, TokenizerSettings& settings);
void ReadGenerationConfig(std::string_view text, const std::string& where, TokenizerSettings& settings);
// config.json: the class of the tokenizer where tokenizer_config.json does not name it.
void ReadModelConfig(std::string_view text, const std::string& where, TokenizerSettings& settings);

// tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json, config.json and
// chat_template.jinja of a folder, those that are there.
TokenizerSettings LoadTokenizerSettings(const std::filesystem::path& folder);

}  // namespace stoch
