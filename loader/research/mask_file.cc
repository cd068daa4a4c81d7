// SPDX-License-Identifier: Apache-2.0
#include "loader/research/mask_file.h"

#include <algorithm>
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

bool IsInteger(const Json& value, int64_t low, int64_t high) {
  return value.is_number_integer() && value.get<int64_t>() >= low && value.get<int64_t>() <= high;
}

// One entry as a value of the setting arith.
std::string Entry(const std::string& name, const std::string& key, const Json& value, int int_bits, int bits) {
  const auto integer = [&](int own) { return "int" + std::to_string(bits > 0 ? bits : own); };
  if (IsInteger(value, 0, 2)) {
    constexpr const char* kNames[] = {"fp", "sc"};
    const auto number = static_cast<size_t>(value.get<int>());
    return number < 2 ? kNames[number] : integer(int_bits);
  }
  if (value.is_string()) {
    std::string text = value.get<std::string>();
    if (text == "sc" || text == "fp" || text == "fp8_e4m3" || text == "mxint8") return text;
    if (text == "int") return integer(int_bits);
    if (text.size() == 4 && text.substr(0, 3) == "int" && text[3] >= '2' && text[3] <= '8') {
      return integer(text[3] - '0');
    }
  }
  Reject(name, key, value,
         "sc, fp, int2..int8, fp8_e4m3, mxint8, or 0, 1, 2 for fp, sc, int" + std::to_string(int_bits));
}

}  // namespace

MaskFile ParseMaskFile(const std::string& text, const std::string& name, int bits) {
  const Json root = ParseBoundedJson(text, name);
  if (!root.is_object()) Reject(name, "the file", root, "an object");
  MaskFile mask;
  mask.name = name;
  int int_bits = 7;
  for (const auto& [key, value] : root.items()) {
    if (key == "format") {
      if (value != "scmp_llm_hybrid_v1") Reject(name, key, value, "scmp_llm_hybrid_v1");
    } else if (key == "int_bits") {
      if (!IsInteger(value, 2, 8)) Reject(name, key, value, "2..8");
      int_bits = value.get<int>();
    } else if (key == "int_sym") {
      if (value != true) Reject(name, key, value, "true");
    } else if (key == "chunk_size") {
      if (!IsInteger(value, 1, 1 << 20)) Reject(name, key, value, "1..1048576");
      mask.chunk_size = value.get<int64_t>();
    } else if (key != "default" && key != "schedule") {
      if (mask.unknown_keys.size() < 16) mask.unknown_keys.push_back(Quoted(key));
    }
  }
  if (!root.contains("default") && !root.contains("schedule")) {
    throw InvalidInput(name + ": a mask has default or schedule; this file has neither");
  }
  if (root.contains("default")) mask.default_arith = Entry(name, "default", root["default"], int_bits, bits);
  if (!root.contains("schedule")) return mask;
  if (!root["schedule"].is_object()) Reject(name, "schedule", root["schedule"], "an object");
  constexpr size_t kMaxLayers = 4096;
  for (const auto& [op, entries] : root["schedule"].items()) {
    if (!entries.is_array() || entries.size() > kMaxLayers) {
      Reject(name, "schedule " + Quoted(op), entries, "a list of an entry per layer");
    }
    std::vector<std::string>& to = mask.schedule[op];
    for (const Json& entry : entries) to.push_back(Entry(name, "schedule " + Quoted(op), entry, int_bits, bits));
  }
  return mask;
}

}  // namespace stoch
