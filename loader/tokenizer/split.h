// SPDX-License-Identifier: Apache-2.0
// Pre-tokenizers of tokenizer.json: how text is cut into the words that are merged on their own.
#pragma once

#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "loader/tokenizer/regex.h"

namespace stoch {

enum class PrefixScheme { kNever, kFirst, kAlways };

// A Split step: matches of `pattern` (or what lies between them, if inverted) become words of their own; kRemoved
// drops them, kMergedWithPrevious makes each the end of the word before it, where that is no match.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious };
struct SplitStep {
  Regex pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
};

// Metaspace: spaces become `replacement`, with one in front, and begin a word each if `split`.
struct MetaspaceStep {
  std::string replacement;
  PrefixScheme prefix = PrefixScheme::kAlways;
  bool split = true;
};

// A space in front of every piece that does not begin with one (ByteLevel's add_prefix_space).
struct PrefixSpaceStep {};

// The pre_tokenizer of a tokenizer.json. Immutable; threads: safe.
// Source: huggingface/tokenizers, pre_tokenizers/{split,metaspace,byte_level,digits}.rs.
class PreTokenizer {
 public:
  PreTokenizer() = default;  // none: the text is one word
  // Errors: InvalidInput for a kind or behaviour no Llama checkpoint has, or a pattern that does not compile.
  PreTokenizer(const nlohmann::json& json, const std::string& where);

  // Words of one text; `storage` owns the text of those that are not part of the input.
  struct Words {
    std::vector<std::string_view> words;
    std::deque<std::string> storage;
  };
  // The words of `text`, none empty. `first`: text stands at the beginning of what is encoded.
  // Requires: well-formed UTF-8 that outlives the result.
  Words Split(std::string_view text, bool first) const;

  bool byte_level() const { return byte_level_; }
  const MetaspaceStep* metaspace() const;  // nullptr if there is none

 private:
  using Step = std::variant<SplitStep, MetaspaceStep, PrefixSpaceStep>;
  void Add(const nlohmann::json& json, const std::string& where);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

// The prefix scheme of a Metaspace pre-tokenizer or decoder. Errors: InvalidInput.
PrefixScheme MetaspacePrefix(const nlohmann::json& json, const std::string& where);

}  // namespace stoch
