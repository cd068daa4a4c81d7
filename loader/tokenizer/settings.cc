// SPDX-License-Identifier: Apache-2.0
#include "loader/tokenizer/settings.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/file.h"
#include "loader/quote.h"
#include "loader/tokenizer/json.h"
#include "loader/tokenizer/limits.h"

namespace stoch {
namespace {

using nlohmann::json;

json ParseObject(std::string_view text, const std::string& where) {
  json object = ParseBoundedJson(text, where);
  ExpectObject(object, where);
  return object;
}

// A token is written as its text, or as an object with the text and its flags; null and "" are none.
std::string TokenOf(const json& value, const std::string& place) {
  if (value.is_null()) return "";
  if (value.is_object()) return StringMember(value, "content", place).value_or("");
  return StringOf(value, place);
}

// Calls take(key, token) for every one of the keys that is there.
template <typename Take>
void ForTokens(const json& object, std::initializer_list<std::string_view> keys, const std::string& where,
               const Take& take) {
  for (const std::string_view key : keys) {
    const auto member = object.find(key);
    if (member != object.end()) take(key, TokenOf(*member, where + ": " + std::string(key)));
  }
}

void ReadNamedTokens(const json& object, const std::string& where, TokenizerSettings& settings) {
  ForTokens(object, {"bos_token", "eos_token", "pad_token"}, where, [&](std::string_view key, std::string token) {
    auto& to = key == "bos_token" ? settings.bos_token : key == "eos_token" ? settings.eos_token : settings.pad_token;
    to = std::move(token);
  });
  const auto by_key = [&](std::string_view key, std::string token) {
    settings.other_named.insert_or_assign(std::string(key), std::move(token));
  };
  ForTokens(object, {"unk_token", "sep_token", "cls_token", "mask_token"}, where, by_key);
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const json* more = FindMember(object, key);
    if (more == nullptr) continue;
    const std::string place = where + ": " + key;
    if (more->is_object()) {  // with keys of their own
      for (const auto& [name, token] : more->items()) by_key(name, TokenOf(token, place));
      continue;
    }
    ExpectArray(*more, place);
    for (const json& token : *more) settings.additional_named.push_back(TokenOf(token, place));
  }
}

void ReadAddedTokensDecoder(const json& decoder, const std::string& where, TokenizerSettings& settings) {
  ExpectObject(decoder, where);
  for (const auto& [key, value] : decoder.items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id > kMaxTokenId) {
      throw InvalidInput(where + ": expected token ids in 0 .. " + std::to_string(kMaxTokenId) + " as keys, got " +
                         Quoted(key));
    }
    const std::string place = where + ": " + key;
    ExpectObject(value, place);
    const auto content = StringMember(value, "content", place);
    if (!content || content->empty()) throw InvalidInput(place + ": content is missing");
    const bool special = BoolMember(value, "special", place).value_or(false);
    settings.added.push_back({*content, id, special, BoolMember(value, "lstrip", place).value_or(false),
                              BoolMember(value, "rstrip", place).value_or(false),
                              BoolMember(value, "normalized", place).value_or(!special)});
  }
}

// One template, or a list of named ones of which "default" is for plain conversations.
std::string ChatTemplateOf(const json& value, const std::string& where) {
  if (value.is_string()) return value.get<std::string>();
  ExpectArray(value, where);
  for (const json& named : value) {
    ExpectObject(named, where);
    if (StringMember(named, "name", where) == "default") return StringMember(named, "template", where).value_or("");
  }
  return "";
}

}  // namespace

void ReadTokenizerConfig(std::string_view text, const std::string& where, TokenizerSettings& settings) {
  const json object = ParseObject(text, where);
  ReadNamedTokens(object, where, settings);
  settings.add_bos = BoolMember(object, "add_bos_token", where);
  settings.tokenizer_class = StringMember(object, "tokenizer_class", where).value_or("");
  settings.legacy = BoolMember(object, "legacy", where);
  settings.add_prefix_space = BoolMember(object, "add_prefix_space", where);
  if (const json* decoder = FindMember(object, "added_tokens_decoder")) {
    settings.has_decoder = true;
    ReadAddedTokensDecoder(*decoder, where + ": added_tokens_decoder", settings);
  }
  if (const json* chat = FindMember(object, "chat_template"); chat != nullptr && settings.chat_template.empty()) {
    settings.chat_template = ChatTemplateOf(*chat, where + ": chat_template");
  }
}

void ReadSpecialTokensMap(std::string_view text, const std::string& where, TokenizerSettings& settings) {
  const json object = ParseObject(text, where);
  if (!settings.has_decoder) ReadNamedTokens(object, where, settings);
}

void ReadAddedTokens(std::string_view text, const std::string& where, TokenizerSettings& settings) {
  const json object = ParseObject(text, where);
  for (const auto& [content, value] : object.items()) {
    const int32_t id = TokenIdOf(value, where + ": " + Quoted(content));
    if (content.empty()) throw InvalidInput(where + ": token " + std::to_string(id) + " is empty");
    if (settings.has_decoder) continue;
    const bool special = settings.Names(content);
    settings.added.push_back({.content = content, .id = id, .special = special, .normalized = !special});
  }
}

void ReadGenerationConfig(std::string_view text, const std::string& where, TokenizerSettings& settings) {
  const json object = ParseObject(text, where);
  const json* eos = FindMember(object, "eos_token_id");
  if (eos == nullptr) return;
  const std::string place = where + ": eos_token_id";
  if (!eos->is_array()) {
    settings.eos_ids.push_back(TokenIdOf(*eos, place));
    return;
  }
  for (const json& id : *eos) settings.eos_ids.push_back(TokenIdOf(id, place));
}

void ReadModelConfig(std::string_view text, const std::string& where, TokenizerSettings& settings) {
  if (!settings.tokenizer_class.empty()) return;
  const json object = ParseObject(text, where);
  settings.tokenizer_class = StringMember(object, "tokenizer_class", where).value_or("");
  if (!settings.tokenizer_class.empty()) return;
  settings.tokenizer_class = TokenizerClassOf(StringMember(object, "model_type", where).value_or(""));
}

bool TokenizerSettings::Names(std::string_view content) const {
  return content == bos_token || content == eos_token || content == pad_token ||
         std::find(additional_named.begin(), additional_named.end(), content) != additional_named.end() ||
         std::any_of(other_named.begin(), other_named.end(),
                     [&](const auto& named) { return named.second == content; });
}

TokenizerSettings LoadTokenizerSettings(const std::filesystem::path& folder) {
  TokenizerSettings settings;
  settings.where = folder.string();
  const auto text_of = [&](const char* name) -> std::optional<std::string> {
    if (!std::filesystem::exists(folder / name)) return std::nullopt;
    return ReadSmallFile(folder / name, kMaxSettingsFileBytes);
  };
  const auto where = [&](const char* name) { return (folder / name).string(); };
  if (auto text = text_of("chat_template.jinja")) settings.chat_template = std::move(*text);
  using Reader = void (*)(std::string_view, const std::string&, TokenizerSettings&);
  constexpr std::pair<const char*, Reader> kFiles[] = {{"tokenizer_config.json", ReadTokenizerConfig},
                                                       {"special_tokens_map.json", ReadSpecialTokensMap},
                                                       {"added_tokens.json", ReadAddedTokens},
                                                       {"generation_config.json", ReadGenerationConfig},
                                                       {"config.json", ReadModelConfig}};
  for (const auto& [name, read] : kFiles) {
    if (const auto text = text_of(name)) read(*text, where(name), settings);
  }
  return settings;
}

}  // namespace stoch
