// SPDX-License-Identifier: Apache-2.0
#include "loader/tokenizer/split.h"

#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/error.h"
#include "loader/quote.h"
#include "loader/tokenizer/json.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch {
namespace {

using nlohmann::json;
using Words = PreTokenizer::Words;

// GPT-2's pattern, which ByteLevel applies unless use_regex is false.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string EscapeLiteral(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    const bool plain = (c & 0x80) != 0 || std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (!plain) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

std::string PatternOf(const json& step, const std::string& where) {
  const json* pattern = FindMember(step, "pattern");
  if (pattern == nullptr) throw InvalidInput(where + ": pattern is missing");
  ExpectObject(*pattern, where + ": pattern");
  if (const auto regex = StringMember(*pattern, "Regex", where + ": pattern")) return *regex;
  if (const auto text = StringMember(*pattern, "String", where + ": pattern")) return EscapeLiteral(*text);
  throw InvalidInput(where + ": pattern: expected Regex or String");
}

SplitStep MakeSplit(const json& step, const std::string& where) {
  const std::string behavior = StringMember(step, "behavior", where).value_or("");
  constexpr std::pair<std::string_view, SplitBehavior> kBehaviors[] = {
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious}};
  for (const auto& [name, value] : kBehaviors) {
    if (behavior != name) continue;
    return {Regex(PatternOf(step, where), where), value, BoolMember(step, "invert", where).value_or(false)};
  }
  throw InvalidInput(where + ": behavior: expected Isolated, Removed or MergedWithPrevious, got " + Quoted(behavior));
}

void Apply(const SplitStep& step, bool /*first*/, Words& words) {
  std::vector<std::string_view> result;
  for (const std::string_view word : words.words) {
    size_t done = 0, last = 0;  // where the last word begins
    bool may_grow = false;
    const auto add = [&](size_t begin, size_t end, bool matched) {
      if (end <= begin) return;
      const bool is_match = matched != step.invert;
      if (is_match && step.behavior == SplitBehavior::kRemoved) return;
      const bool grows = is_match && may_grow && step.behavior == SplitBehavior::kMergedWithPrevious;
      if (grows) {
        result.back() = word.substr(last, end - last);
      } else {
        result.push_back(word.substr(begin, end - begin));
        last = begin;
      }
      may_grow = !is_match;
    };
    for (const TextSpan& match : step.pattern.FindAll(word)) {
      add(done, match.begin, false);
      add(match.begin, match.end, true);
      done = match.end;
    }
    add(done, word.size(), false);
  }
  words.words = std::move(result);
}

void Apply(const MetaspaceStep& step, bool first, Words& words) {
  std::vector<std::string_view> result;
  for (size_t i = 0; i < words.words.size(); ++i) {
    std::string text = ReplaceAll(words.words[i], " ", step.replacement);
    const bool prefix =
        step.prefix == PrefixScheme::kAlways || (step.prefix == PrefixScheme::kFirst && first && i == 0);
    if (prefix && !text.starts_with(step.replacement)) text.insert(0, step.replacement);
    const std::string_view whole = words.storage.emplace_back(std::move(text));
    size_t begin = 0;
    while (step.split && begin < whole.size()) {  // a word begins at every replacement
      const size_t next = whole.find(step.replacement, begin + 1);
      if (next == std::string_view::npos) break;
      result.push_back(whole.substr(begin, next - begin));
      begin = next;
    }
    if (begin < whole.size()) result.push_back(whole.substr(begin));
  }
  words.words = std::move(result);
}

void Apply(const PrefixSpaceStep&, bool /*first*/, Words& words) {
  for (std::string_view& word : words.words) {
    if (!word.starts_with(' ')) word = words.storage.emplace_back(" " + std::string(word));
  }
}

}  // namespace

PrefixScheme MetaspacePrefix(const json& object, const std::string& where) {
  const bool add_prefix_space = BoolMember(object, "add_prefix_space", where).value_or(true);
  const std::string scheme =
      StringMember(object, "prepend_scheme", where).value_or(add_prefix_space ? "always" : "never");
  if (scheme == "always") return PrefixScheme::kAlways;
  if (scheme == "first") return PrefixScheme::kFirst;
  if (scheme == "never") return PrefixScheme::kNever;
  throw InvalidInput(where + ": prepend_scheme: expected always, first or never, got " + Quoted(scheme));
}

PreTokenizer::PreTokenizer(const json& object, const std::string& where) { Add(object, where); }

void PreTokenizer::Add(const json& object, const std::string& where) {
  ExpectObject(object, where);
  const std::string type = StringMember(object, "type", where).value_or("");
  if (type == "Sequence") {
    const json* list = FindMember(object, "pretokenizers");
    if (list == nullptr) throw InvalidInput(where + ": pretokenizers is missing");
    ExpectArray(*list, where + ": pretokenizers");
    for (const json& step : *list) Add(step, where);
  } else if (type == "Split") {
    steps_.emplace_back(MakeSplit(object, where));
  } else if (type == "Digits") {
    const bool individual = BoolMember(object, "individual_digits", where).value_or(false);
    steps_.emplace_back(SplitStep{Regex(individual ? R"(\p{N})" : R"(\p{N}+)", where)});
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    if (BoolMember(object, "add_prefix_space", where).value_or(true)) steps_.emplace_back(PrefixSpaceStep{});
    if (BoolMember(object, "use_regex", where).value_or(true)) {
      steps_.emplace_back(SplitStep{Regex(kGpt2Pattern, where)});
    }
  } else if (type == "Metaspace") {
    MetaspaceStep step{StringMember(object, "replacement", where).value_or("\u2581"), MetaspacePrefix(object, where),
                       BoolMember(object, "split", where).value_or(true)};
    if (step.replacement.empty()) throw InvalidInput(where + ": replacement: expected a character, got none");
    steps_.emplace_back(std::move(step));
  } else {
    throw InvalidInput(where + ": the type " + Quoted(type) +
                       " is not supported (Sequence, Split, Digits, ByteLevel and Metaspace are)");
  }
}

Words PreTokenizer::Split(std::string_view text, bool first) const {
  Words words;
  if (text.empty()) return words;
  words.words.push_back(text);
  for (const Step& step : steps_) {
    std::visit([&](const auto& kind) { Apply(kind, first, words); }, step);
  }
  return words;
}

const MetaspaceStep* PreTokenizer::metaspace() const {
  for (const Step& step : steps_) {
    if (const auto* found = std::get_if<MetaspaceStep>(&step)) return found;
  }
  return nullptr;
}

}  // namespace stoch
