// SPDX-License-Identifier: Apache-2.0
// The tokenizer in the metadata of a GGUF file, handed to the kind that it was converted from: a SentencePiece model, or
// a tokenizer.json of byte-level kind.
//
// Source: ggml-org/llama.cpp, gguf-py (constants.py, Keys.Tokenizer) and src/llama-vocab.cpp for what absent keys mean.
#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/error.h"
#include "loader/checkpoint/gguf/header.h"
#include "loader/quote.h"
#include "loader/tokenizer/kinds.h"
#include "loader/tokenizer/limits.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch {
namespace {

using gguf::Metadata;
using nlohmann::json;

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kTypes = "tokenizer.ggml.token_type";

// The numbers of SentencePiece's own types.
enum TokenType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// How a byte-level vocabulary cuts text. The patterns are those of the models' own tokenizer.json.
struct ByteLevelRules {
  std::string_view name;  // tokenizer.ggml.pre
  const char* pattern;    // nullptr: GPT-2's
  bool nfc;
  bool ignore_merges;
  bool add_bos;
};
constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr ByteLevelRules kByteLevelRules[] = {
    {"llama-bpe", kLlama3Pattern, false, true, true}, {"llama3", kLlama3Pattern, false, true, true},
    {"qwen2", kQwen2Pattern, true, false, false},     {"tekken", kTekkenPattern, false, true, true},
    {"gpt-2", nullptr, false, false, false},
};

const ByteLevelRules& RulesOf(const Metadata& metadata) {
  constexpr std::string_view kKey = "tokenizer.ggml.pre";
  const std::string_view name = metadata.Required(kKey, metadata.String(kKey));
  std::string known;
  for (const ByteLevelRules& rules : kByteLevelRules) {
    if (rules.name == name) return rules;
    known.append(known.empty() ? "" : ", ").append(rules.name);
  }
  metadata.Fail(kKey, "expected one of " + known + ", got " + Quoted(name) + "; give the model's own with --tokenizer");
}

struct Vocabulary {
  std::vector<std::string_view> tokens;
  std::vector<int64_t> types;
};

// What the tokens of a SentencePiece model are where the file does not say: bytes by their names, the ids that it names
// for a purpose, or else those that llama.cpp takes.
// Source: ggml-org/llama.cpp, src/llama-vocab.cpp.
std::vector<int64_t> DefaultTypes(const Metadata& metadata, const std::vector<std::string_view>& tokens) {
  std::vector<int64_t> types(tokens.size(), kNormal);
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (FallbackByte(tokens[id])) types[id] = kByte;
  }
  const auto set = [&](std::string_view key, std::optional<int64_t> absent, int64_t type) {
    const std::optional<int64_t> id = metadata.Integer(key) ? metadata.Integer(key) : absent;
    if (id && *id >= 0 && *id < static_cast<int64_t>(types.size())) types[static_cast<size_t>(*id)] = type;
  };
  set("tokenizer.ggml.padding_token_id", std::nullopt, kControl);
  set("tokenizer.ggml.bos_token_id", 1, kControl);
  set("tokenizer.ggml.eos_token_id", 2, kControl);
  set("tokenizer.ggml.unknown_token_id", 0, kUnknown);
  return types;
}

Vocabulary ReadVocabulary(const Metadata& metadata, bool sentencepiece) {
  Vocabulary vocabulary;
  vocabulary.tokens = metadata.Required(kTokens, metadata.Strings(kTokens));
  const size_t count = vocabulary.tokens.size();
  if (count == 0 || count > static_cast<size_t>(kMaxTokenId) + 1) {
    metadata.Fail(kTokens,
                  "expected 1 to " + std::to_string(kMaxTokenId + 1) + " tokens, got " + std::to_string(count));
  }
  if (auto types = metadata.Integers(kTypes)) {
    vocabulary.types = std::move(*types);
  } else {
    vocabulary.types = sentencepiece ? DefaultTypes(metadata, vocabulary.tokens) : std::vector<int64_t>(count, kNormal);
  }
  if (vocabulary.types.size() != count) {
    metadata.Fail(kTypes, "expected one for each of " + std::to_string(count) + " tokens, got " +
                              std::to_string(vocabulary.types.size()));
  }
  for (size_t id = 0; id < count; ++id) {
    const std::string place = metadata.where() + ": " + std::string(kTokens) + "[" + std::to_string(id) + "]";
    CheckUtf8(vocabulary.tokens[id], place);
    const int64_t type = vocabulary.types[id];
    if (type < kNormal || type > kByte) {
      metadata.Fail(kTypes, "expected 1 to 6, got " + std::to_string(type) + " for token " + std::to_string(id));
    }
    if (vocabulary.tokens[id].empty() && type != kUnused) throw InvalidInput(place + ": expected a token, got none");
  }
  return vocabulary;
}

std::optional<std::string> TokenOf(const Metadata& metadata, const Vocabulary& vocabulary, std::string_view key) {
  const std::optional<int64_t> id = metadata.Integer(key);
  if (!id) return std::nullopt;
  if (*id < 0 || *id >= static_cast<int64_t>(vocabulary.tokens.size())) {
    metadata.Fail(
        key, "expected a token id below " + std::to_string(vocabulary.tokens.size()) + ", got " + std::to_string(*id));
  }
  return std::string(vocabulary.tokens[static_cast<size_t>(*id)]);
}

TokenizerSettings ReadSettings(const Metadata& metadata, const Vocabulary& vocabulary) {
  TokenizerSettings settings;
  settings.where = metadata.where();
  settings.bos_token = TokenOf(metadata, vocabulary, "tokenizer.ggml.bos_token_id");
  settings.eos_token = TokenOf(metadata, vocabulary, "tokenizer.ggml.eos_token_id");
  settings.pad_token = TokenOf(metadata, vocabulary, "tokenizer.ggml.padding_token_id");
  settings.add_bos = metadata.Boolean("tokenizer.ggml.add_bos_token");
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (TokenOf(metadata, vocabulary, key)) settings.eos_ids.push_back(static_cast<int32_t>(*metadata.Integer(key)));
  }
  if (const auto source = metadata.String("tokenizer.chat_template")) {
    CheckUtf8(*source, metadata.where() + ": tokenizer.chat_template");
    settings.chat_template = *source;
  }
  return settings;
}

// Protobuf, as far as a SentencePiece model needs it.
void AppendVarint(uint64_t value, std::string& to) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>(value | 0x80);
  to += static_cast<char>(value);
}
void AppendNumber(uint64_t field, uint64_t value, std::string& to) {
  AppendVarint(field << 3, to);
  AppendVarint(value, to);
}
void AppendFloat(uint64_t field, float value, std::string& to) {
  AppendVarint(field << 3 | 5, to);
  const auto bits = std::bit_cast<uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8) to += static_cast<char>(bits >> shift);
}
void AppendBytes(uint64_t field, std::string_view bytes, std::string& to) {
  AppendVarint(field << 3 | 2, to);
  AppendVarint(bytes.size(), to);
  to += bytes;
}

// Field numbers: sentencepiece_model.proto.
std::string SentencePieceModel(const Metadata& metadata, const Vocabulary& vocabulary) {
  constexpr std::string_view kScores = "tokenizer.ggml.scores";
  const std::vector<double> scores = metadata.Required(kScores, metadata.Numbers(kScores));
  if (scores.size() != vocabulary.tokens.size()) {
    metadata.Fail(kScores, "expected one for each of " + std::to_string(vocabulary.tokens.size()) + " tokens, got " +
                               std::to_string(scores.size()));
  }
  if (metadata.Has("tokenizer.ggml.precompiled_charsmap")) {
    metadata.Fail("tokenizer.ggml.precompiled_charsmap", "expected no compiled normalization rules, got some");
  }
  std::string model;
  for (size_t id = 0; id < scores.size(); ++id) {
    std::string piece;
    AppendBytes(1, vocabulary.tokens[id], piece);
    AppendFloat(2, static_cast<float>(scores[id]), piece);
    AppendNumber(3, static_cast<uint64_t>(vocabulary.types[id]), piece);
    AppendBytes(1, piece, model);
  }
  std::string trainer;
  AppendNumber(3, 2, trainer);  // model_type: BPE
  const bool has_bytes = std::find(vocabulary.types.begin(), vocabulary.types.end(), kByte) != vocabulary.types.end();
  AppendNumber(35, has_bytes ? 1 : 0, trainer);  // byte_fallback
  AppendBytes(2, trainer, model);
  std::string normalizer;
  AppendBytes(1, "identity", normalizer);
  AppendNumber(3, metadata.Boolean("tokenizer.ggml.add_space_prefix").value_or(true) ? 1 : 0, normalizer);
  AppendNumber(4, metadata.Boolean("tokenizer.ggml.remove_extra_whitespaces").value_or(false) ? 1 : 0, normalizer);
  AppendBytes(3, normalizer, model);
  return model;
}

// As a tokenizer.json says that a text begins with BOS.
json PostProcessorJson(const TokenizerSettings& settings, const Vocabulary& vocabulary) {
  if (!settings.add_bos.value_or(false) || !settings.bos_token) return {};
  const std::string& bos = *settings.bos_token;
  const auto id = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), bos) - vocabulary.tokens.begin();
  return {{"type", "TemplateProcessing"},
          {"single", json::array({{{"SpecialToken", {{"id", bos}}}}, {{"Sequence", {{"id", "A"}}}}})},
          {"special_tokens", {{bos, {{"id", bos}, {"ids", json::array({id})}}}}}};
}

json SplitJson(const ByteLevelRules& rules) {
  json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", rules.pattern == nullptr}};
  if (rules.pattern == nullptr) return byte_level;
  const json split = {
      {"type", "Split"}, {"pattern", {{"Regex", rules.pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", json::array({split, byte_level})}};
}

std::string TokenizerJson(const Metadata& metadata, const Vocabulary& vocabulary, const ByteLevelRules& rules,
                          const TokenizerSettings& settings) {
  constexpr std::string_view kMerges = "tokenizer.ggml.merges";
  json vocab = json::object();
  json added = json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const int64_t type = vocabulary.types[id];
    if (type == kUnused) continue;
    const std::string token(vocabulary.tokens[id]);
    if (type != kNormal) {
      const bool special = type == kControl || type == kUnknown;
      added.push_back({{"id", id}, {"content", token}, {"special", special}, {"normalized", false}});
    } else if (!vocab.emplace(token, id).second) {
      metadata.Fail(kTokens, "expected every token once, got " + Quoted(token) + " twice");
    }
  }
  json merges = json::array();
  const std::vector<std::string_view> written = metadata.Required(kMerges, metadata.Strings(kMerges));
  for (size_t i = 0; i < written.size(); ++i) {
    CheckUtf8(written[i], metadata.where() + ": " + std::string(kMerges) + "[" + std::to_string(i) + "]");
    merges.push_back(written[i]);
  }
  const json file = {{"added_tokens", std::move(added)},
                     {"normalizer", rules.nfc ? json{{"type", "NFC"}} : json()},
                     {"pre_tokenizer", SplitJson(rules)},
                     {"post_processor", PostProcessorJson(settings, vocabulary)},
                     {"decoder", {{"type", "ByteLevel"}}},
                     {"model",
                      {{"type", "BPE"},
                       {"ignore_merges", rules.ignore_merges},
                       {"vocab", std::move(vocab)},
                       {"merges", std::move(merges)}}}};
  return file.dump();
}

}  // namespace

std::unique_ptr<Tokenizer> MakeGgufTokenizer(const Metadata& metadata) {
  constexpr std::string_view kModel = "tokenizer.ggml.model";
  const std::string_view model = metadata.Required(kModel, metadata.String(kModel));
  if (model != "llama" && model != "gpt2") {
    metadata.Fail(kModel, "expected llama (SentencePiece) or gpt2 (byte-level), got " + Quoted(model));
  }
  const Vocabulary vocabulary = ReadVocabulary(metadata, model == "llama");
  TokenizerSettings settings = ReadSettings(metadata, vocabulary);
  if (model == "llama") {
    return MakeSentencePieceTokenizer(SentencePieceModel(metadata, vocabulary), metadata.where(), settings);
  }
  const ByteLevelRules& rules = RulesOf(metadata);
  if (!settings.add_bos) settings.add_bos = rules.add_bos;
  return MakeHuggingFaceTokenizer(TokenizerJson(metadata, vocabulary, rules, settings), metadata.where(), settings);
}

}  // namespace stoch
