// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/schema_values.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

namespace stoch {
namespace {

// Whether `c`, as one character of a pattern or an escaped one, is a quote, a backslash or a control character, which JSON
// writes in another way than the grammar of a pattern does.
bool IsEscapedInJson(char c, bool escaped) {
  if (!escaped) return c == '"' || static_cast<unsigned char>(c) < 0x20;
  return c == '"' || c == '\\' || std::string_view("nrtfvbcxu0").find(c) != std::string_view::npos;
}

}  // namespace

std::string TypeOf(const SortedJson& value) {
  if (!value.is_number()) return value.type_name();
  const bool is_whole = value.is_number_integer() || std::floor(value.get<double>()) == value.get<double>();
  return is_whole ? "integer" : "number";
}

std::vector<std::string_view> UncomparedBy(const SortedJson& value) {
  if (value.is_string()) return {"pattern"};
  if (value.is_number()) return {"multipleOf"};
  if (value.is_array()) return {"items", "prefixItems", "unevaluatedItems"};
  if (!value.is_object()) return {};
  return {"properties",           "required", "patternProperties", "propertyNames", "additionalProperties",
          "unevaluatedProperties"};
}

std::string_view BrokenBound(const SortedJson& schema, const SortedJson& value) {
  const auto breaks = [&schema](std::string_view bound, double size, auto allows) {
    const auto found = schema.find(bound);
    return found != schema.end() && found->is_number() && !allows(size, found->get<double>());
  };
  const auto outside = [&](std::string_view least, std::string_view most, double size) -> std::string_view {
    if (breaks(least, size, std::greater_equal<>())) return least;
    return breaks(most, size, std::less_equal<>()) ? most : std::string_view();
  };
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const auto characters = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
    return outside("minLength", "maxLength", static_cast<double>(characters));
  }
  if (value.is_array()) return outside("minItems", "maxItems", static_cast<double>(value.size()));
  if (value.is_object()) return outside("minProperties", "maxProperties", static_cast<double>(value.size()));
  if (!value.is_number()) return {};
  const auto number = value.get<double>();
  if (breaks("exclusiveMinimum", number, std::greater<>())) return "exclusiveMinimum";
  if (breaks("exclusiveMaximum", number, std::less<>())) return "exclusiveMaximum";
  return outside("minimum", "maximum", number);
}

bool NeedsEscapes(std::string_view pattern) {
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool escaped = pattern[i] == '\\' && i + 1 < pattern.size();
    if (escaped) ++i;
    if (!escaped && pattern[i] == '[') in_class = true;
    if (!escaped && pattern[i] == ']') in_class = false;
    if (!in_class && IsEscapedInJson(pattern[i], escaped)) return true;
  }
  return false;
}

bool IsTooNarrow(const SortedJson& schema) {
  constexpr double kUnits = 1e6;
  double low = -1e300, high = 1e300;
  for (const auto& [name, value] : schema.items()) {
    if (!value.is_number()) continue;
    if (name == "minimum" || name == "exclusiveMinimum") low = std::max(low, value.get<double>());
    if (name == "maximum" || name == "exclusiveMaximum") high = std::min(high, value.get<double>());
  }
  return low > -1e9 && high < 1e9 && low <= high && std::ceil(low * kUnits - 1e-6) > std::floor(high * kUnits + 1e-6);
}

}  // namespace stoch
