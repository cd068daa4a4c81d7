// SPDX-License-Identifier: Apache-2.0
#include "loader/research/smooth_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/quote.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

[[noreturn]] void Reject(const std::string& name, const std::string& key, const Json& value,
                         const std::string& allowed) {
  const std::string text = value.is_structured() ? std::string(JsonTypeName(value)) : JsonText(value);
  throw InvalidInput(name + ": " + key + " = " + Quoted(text) + ": allowed is " + allowed);
}

// "qk:bN" as "N.qk", "" for another key.
std::string LayerKey(const std::string& key) {
  constexpr std::string_view kPrefix = "qk:b";
  if (!key.starts_with(kPrefix)) return "";
  const std::string number = key.substr(kPrefix.size());
  const bool canonical = number == "0" || (!number.empty() && number[0] != '0' &&
                                           number.find_first_not_of("0123456789") == std::string::npos);
  return canonical ? number + ".qk" : "";
}

}  // namespace

SmoothFile ParseSmoothJson(const std::string& text, const std::string& name, std::vector<std::string>* unknown) {
  const Json root = ParseBoundedJson(text, name);
  if (!root.is_object()) Reject(name, "the file", root, "an object");
  const auto scales = root.find("scales");
  if (scales == root.end() || !scales->is_object()) {
    Reject(name, "scales", scales == root.end() ? Json() : *scales, "an object of \"qk:bN\"");
  }
  SmoothFile file;
  file.name = name;
  for (const auto& [key, values] : scales->items()) {
    const std::string layer = LayerKey(key);
    const std::string where = "scales." + Quoted(key);
    if (layer.empty()) {
      unknown->push_back(where);
      continue;
    }
    if (!values.is_array() || values.empty()) Reject(name, where, values, "an array of head_dim numbers");
    std::vector<float>& own = file.scales[layer];
    for (const Json& value : values) {
      const float factor = value.is_number() ? static_cast<float>(value.get<double>()) : 0.0f;
      if (!std::isfinite(factor) || factor <= 0) {
        Reject(name, where + '[' + std::to_string(own.size()) + ']', value, "a finite number above 0");
      }
      own.push_back(factor);
    }
  }
  for (const auto& [key, value] : root.items()) {
    if (key != "scales") unknown->push_back(Quoted(key));
  }
  return file;
}

}  // namespace stoch
