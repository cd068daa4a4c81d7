// SPDX-License-Identifier: Apache-2.0
#include "loader/tokenizer/normalize.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/error.h"
#include "loader/quote.h"
#include "loader/tokenizer/json.h"
#include "loader/tokenizer/limits.h"
#include "loader/tokenizer/split.h"
#include "loader/tokenizer/unicode/nfc.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch {
namespace {

using nlohmann::json;

const json& ListMember(const json& object, const char* key, const std::string& where) {
  const json* list = FindMember(object, key);
  if (list == nullptr) throw InvalidInput(where + ": " + key + " is missing");
  ExpectArray(*list, where + ": " + key);
  return *list;
}

std::pair<std::string, std::string> ParseReplace(const json& object, const std::string& where) {
  const json* pattern = FindMember(object, "pattern");
  if (pattern == nullptr) throw InvalidInput(where + ": pattern is missing");
  ExpectObject(*pattern, where + ": pattern");
  auto from = StringMember(*pattern, "String", where + ": pattern");
  if (!from || from->empty()) throw InvalidInput(where + ": pattern: expected a String that is not empty");
  return {std::move(*from), StringMember(object, "content", where).value_or("")};
}

void CheckSteps(size_t steps, const std::string& where) {
  if (steps <= kMaxReplaceSteps) return;
  throw InvalidInput(where + ": expected at most " + std::to_string(kMaxReplaceSteps) + " steps, got more");
}

void AddDecoder(const json& object, const std::string& where, TokenDecoder& decoder) {
  ExpectObject(object, where);
  const std::string type = StringMember(object, "type", where).value_or("");
  if (type == "Sequence") {
    for (const json& step : ListMember(object, "decoders", where)) AddDecoder(step, where, decoder);
  } else if (type == "Replace") {
    decoder.replacements.push_back(ParseReplace(object, where));
    CheckSteps(decoder.replacements.size(), where);
  } else if (type == "ByteFallback") {
    decoder.byte_fallback = true;
  } else if (type == "Fuse") {
    // Joins the tokens, as decoding does anyway.
  } else if (type == "Strip") {
    if (StringMember(object, "content", where) != " ") throw InvalidInput(where + ": Strip: expected a space");
    const json* start = FindMember(object, "start");
    decoder.strips_leading_space = start != nullptr && *start == 1;
    const json* stop = FindMember(object, "stop");
    if ((start != nullptr && *start != 0 && *start != 1) || (stop != nullptr && *stop != 0)) {
      throw InvalidInput(where + ": Strip: expected start 0 or 1 and stop 0");
    }
  } else if (type == "ByteLevel") {
    decoder.byte_level = true;
  } else if (type == "Metaspace") {
    decoder.replacements.emplace_back(StringMember(object, "replacement", where).value_or("\u2581"), " ");
    if (decoder.replacements.back().first.empty()) throw InvalidInput(where + ": replacement is empty");
    CheckSteps(decoder.replacements.size(), where);
    decoder.strips_leading_space = MetaspacePrefix(object, where) != PrefixScheme::kNever;
  } else {
    throw InvalidInput(where + ": the type " + Quoted(type) +
                       " is not supported (Sequence, Replace, ByteFallback, Fuse, Strip, ByteLevel and Metaspace are)");
  }
}

}  // namespace

TextNormalizer::TextNormalizer(const json& object, const std::string& where) { Add(object, where); }

void TextNormalizer::Add(const json& object, const std::string& where) {
  ExpectObject(object, where);
  const std::string type = StringMember(object, "type", where).value_or("");
  if (type == "Sequence") {
    for (const json& step : ListMember(object, "normalizers", where)) Add(step, where);
  } else if (type == "Prepend") {
    steps_.push_back({Step::Kind::kPrepend, "", StringMember(object, "prepend", where).value_or("")});
  } else if (type == "Replace") {
    auto [from, to] = ParseReplace(object, where);
    steps_.push_back({Step::Kind::kReplace, std::move(from), std::move(to)});
  } else if (type == "NFC") {
    steps_.push_back({Step::Kind::kNfc, "", ""});
  } else {
    throw InvalidInput(where + ": the type " + Quoted(type) +
                       " is not supported (Sequence, Prepend, Replace and NFC are)");
  }
  CheckSteps(steps_.size(), where);
}

std::string TextNormalizer::Apply(std::string_view text) const {
  const size_t most = MaxReplacedBytes(text.size());
  std::string result(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::kReplace: result = ReplaceAll(result, step.from, step.to, most); break;
      case Step::Kind::kPrepend:
        if (result.empty()) break;
        if (step.to.size() > most - result.size()) {
          throw InvalidInput("the normalizer puts too much in front of a text");
        }
        result.insert(0, step.to);
        break;
      case Step::Kind::kNfc: result = ToNfc(result); break;
    }
  }
  return result;
}

TokenDecoder ParseTokenDecoder(const json& object, const std::string& where) {
  TokenDecoder decoder;
  AddDecoder(object, where, decoder);
  return decoder;
}

}  // namespace stoch
