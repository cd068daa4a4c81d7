// SPDX-License-Identifier: Apache-2.0
// The normalizer and decoder of a tokenizer.json: what becomes of a text before it is cut, and of tokens afterwards.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace stoch {

// Prepend, Replace and NFC steps in order. Immutable; threads: safe.
// Source: huggingface/tokenizers, normalizers/{prepend,replace,unicode}.rs.
class TextNormalizer {
 public:
  TextNormalizer() = default;  // none
  // Errors: InvalidInput for other kinds of step.
  TextNormalizer(const nlohmann::json& json, const std::string& where);

  bool empty() const { return steps_.empty(); }
  // Requires: well-formed UTF-8.
  // Errors:   InvalidInput where the steps make more than MaxReplacedBytes of the text.
  std::string Apply(std::string_view text) const;

 private:
  struct Step {
    enum class Kind { kPrepend, kReplace, kNfc };
    Kind kind;
    std::string from;  // kReplace
    std::string to;    // kReplace; kPrepend: put in front of a text that is not empty
  };
  void Add(const nlohmann::json& json, const std::string& where);
  std::vector<Step> steps_;
};

// How tokens become running text.
struct TokenDecoder {
  bool byte_level = false;            // GPT-2's alphabet of printable characters for bytes
  bool byte_fallback = false;         // "<0x0A>" is a byte
  bool strips_leading_space = false;  // one, at the beginning of the whole text
  std::vector<std::pair<std::string, std::string>> replacements;
};

// Errors: InvalidInput for decoders no Llama checkpoint has, and more than kMaxReplaceSteps steps.
TokenDecoder ParseTokenDecoder(const nlohmann::json& json, const std::string& where);

}  // namespace stoch
