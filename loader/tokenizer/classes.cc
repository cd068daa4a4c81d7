// SPDX-License-Identifier: Apache-2.0
// The tokenizer classes that checkpoints name.
#include <algorithm>
#include <iterator>
#include <utility>

#include "loader/tokenizer/settings.h"

namespace stoch {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";

constexpr TokenizerClass kClasses[] = {
    {"LlamaTokenizer", "<s>", "</s>", "", true},         {"CodeLlamaTokenizer", "<s>", "</s>", "", true},
    {"GemmaTokenizer", "<bos>", "<eos>", "<pad>", true}, {"Qwen2Tokenizer", "", kEndOfText, kEndOfText},
    {"GPT2Tokenizer", kEndOfText, kEndOfText, ""},       {"PreTrainedTokenizer", "", "", ""},
};

constexpr std::pair<std::string_view, std::string_view> kModels[] = {
    {"llama", "LlamaTokenizer"},   {"mistral", "LlamaTokenizer"},
    {"mixtral", "LlamaTokenizer"}, {"phi3", "LlamaTokenizer"},
    {"gemma", "GemmaTokenizer"},   {"gemma2", "GemmaTokenizer"},
    {"gemma3", "GemmaTokenizer"},  {"gemma3_text", "GemmaTokenizer"},
    {"qwen2", "Qwen2Tokenizer"},   {"qwen2_moe", "Qwen2Tokenizer"},
    {"qwen3", "Qwen2Tokenizer"},   {"qwen3_moe", "Qwen2Tokenizer"},
    {"granite", "GPT2Tokenizer"},  {"smollm3", "PreTrainedTokenizerFast"},
};

}  // namespace

const TokenizerClass* FindTokenizerClass(std::string_view name) {
  constexpr std::string_view kFast = "Fast";
  if (name.ends_with(kFast)) name.remove_suffix(kFast.size());
  const auto* found = std::find_if(std::begin(kClasses), std::end(kClasses),
                                   [&](const TokenizerClass& known) { return known.name == name; });
  return found == std::end(kClasses) ? nullptr : found;
}

std::string_view TokenizerClassOf(std::string_view model_type) {
  const auto* found = std::find_if(std::begin(kModels), std::end(kModels),
                                   [&](const auto& model) { return model.first == model_type; });
  return found == std::end(kModels) ? std::string_view() : found->second;
}

}  // namespace stoch
