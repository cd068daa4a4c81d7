// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/schema_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/quote.h"

namespace stoch {
namespace {

constexpr int kDepth = 256;

constexpr std::string_view kUnknown[] = {
    "not",          "if",       "then",        "else",       "dependentRequired", "dependentSchemas",
    "dependencies", "contains", "minContains", "maxContains"};
// Constraints, by what they are about.
constexpr std::string_view kOfObjects[] = {"properties",    "required",      "patternProperties",
                                           "propertyNames", "minProperties", "maxProperties"};
constexpr std::string_view kOfOthers[] = {"minLength", "maxLength",        "pattern",          "minimum",
                                          "maximum",   "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
                                          "items",     "prefixItems",      "minItems",         "maxItems"};
// In the order in which xgrammar looks for them; the first that is there is all that it reads.
constexpr std::string_view kWhole[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
// Schemas in a schema: a member each, members of a member, entries of a member.
constexpr std::string_view kOne[] = {"items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems"};
constexpr std::string_view kNamed[] = {"properties", "patternProperties"};
constexpr std::string_view kImplyType[] = {"properties", "additionalProperties", "unevaluatedProperties",
                                           "items",      "prefixItems",          "unevaluatedItems"};

template <class List>
std::string_view FirstOf(const SortedJson& schema, const List& keywords) {
  for (const std::string_view keyword : keywords) {
    if (schema.contains(keyword)) return keyword;
  }
  return {};
}

// The narrowest type of a value.
std::string TypeOf(const SortedJson& value) {
  if (!value.is_number()) return value.type_name();
  const bool is_whole = value.is_number_integer() || std::floor(value.get<double>()) == value.get<double>();
  return is_whole ? "integer" : "number";
}

// Whether every type of `inner` is one of `outer`.
bool AllowsTypes(const SortedJson& outer, const SortedJson& inner) {
  const auto names = [](const SortedJson& type) {
    std::set<std::string> all;
    for (const SortedJson& one : type.is_array() ? type : SortedJson::array({type})) {
      if (one.is_string()) all.insert(one.get<std::string>());
    }
    return all;
  };
  std::set<std::string> allowed = names(outer);
  if (allowed.contains("number")) allowed.insert("integer");
  const std::set<std::string> wanted = names(inner);
  return std::includes(allowed.begin(), allowed.end(), wanted.begin(), wanted.end());
}

// Whether `c`, as one character of a pattern or an escaped one, is a quote, a backslash or a control character, which JSON
// writes in another way than the grammar of a pattern does.
bool IsEscapedInJson(char c, bool escaped) {
  if (!escaped) return c == '"' || static_cast<unsigned char>(c) < 0x20;
  return c == '"' || c == '\\' || std::string_view("nrtfvbcxu0").find(c) != std::string_view::npos;
}

// Whether a pattern names such a character outside of [classes], which the grammar gets right.
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

// Whether no number of the six decimals that the grammar of a range has is within it.
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

class SchemaWalk {
 public:
  explicit SchemaWalk(const SortedJson& root) : root_(root) { Add(root, "#", false); }

  void Run() {
    while (!places_.empty()) {
      const Place place = std::move(places_.back());
      places_.pop_back();
      if (place.schema->is_object() && seen_.insert(place.schema).second) Check(place);
    }
  }

 private:
  struct Place {
    const SortedJson* schema;
    std::string path;
    bool is_name;  // of a property, which is a string without a type
  };

  void Add(const SortedJson& schema, std::string path, bool is_name) {
    places_.push_back({&schema, std::move(path), is_name});
  }

  [[noreturn]] static void Refuse(const Place& place, const std::string& words) {
    throw InvalidInput("the JSON schema at " + Quoted(place.path) + ": " + words);
  }

  void Check(const Place& place) {
    const SortedJson& schema = *place.schema;
    if (const auto keyword = FirstOf(schema, kUnknown); !keyword.empty()) {
      Refuse(place, "keyword " + Quoted(keyword) + " is not supported");
    }
    const auto unique = schema.find("uniqueItems");
    if (unique != schema.end() && *unique != false) Refuse(place, "keyword \"uniqueItems\" is not supported");
    for (const char* bound : {"minLength", "maxLength", "minItems"}) {
      const auto found = schema.find(bound);
      if (found != schema.end() && found->is_number() && found->get<double>() < 0) {
        Refuse(place, std::string(bound) + " is below 0");
      }
    }
    if (const auto whole = FirstOf(schema, kWhole); !whole.empty()) {
      CheckWhole(place, whole);
    } else {
      CheckTyped(place);
    }
  }

  // Refuses values or options that are not of the `type` next to them, which xgrammar does not read.
  static void CheckTypeBeside(const Place& place, std::string_view whole) {
    const SortedJson& schema = *place.schema;
    const auto type = schema.find("type");
    if (type == schema.end() || whole == "$ref") return;
    const SortedJson& read = schema.at(std::string(whole));
    const auto is_of_type = [&](const SortedJson& value) { return AllowsTypes(*type, TypeOf(value)); };
    const auto has_type = [&](const SortedJson& option) {
      if (!option.is_object()) return false;
      if (option.contains("const")) return is_of_type(option.at("const"));
      if (option.contains("type")) return AllowsTypes(*type, option.at("type"));
      return !FirstOf(option, kWhole).empty() || !FirstOf(option, kImplyType).empty();
    };
    const bool are_values = whole == "enum";
    const bool agree = whole == "const"
                           ? is_of_type(read)
                           : !read.is_array() || std::all_of(read.begin(), read.end(), [&](const SortedJson& entry) {
                               return are_values ? is_of_type(entry) : has_type(entry);
                             });
    if (!agree) Refuse(place, Quoted(whole) + " has what is not of \"type\"");
  }

  // Values of const and enum are taken as they are, whatever else but their type is said about them.
  void CheckWhole(const Place& place, std::string_view whole) {
    CheckTypeBeside(place, whole);
    if (whole == "const" || whole == "enum") return;
    const SortedJson& schema = *place.schema;
    std::vector<std::string_view> dropped(std::begin(kOfObjects), std::end(kOfObjects));
    dropped.insert(dropped.end(), std::begin(kOfOthers), std::end(kOfOthers));
    for (const std::string_view other : kWhole) {
      if (other != whole) dropped.push_back(other);
    }
    if (const auto other = FirstOf(schema, dropped); !other.empty()) {
      Refuse(place, Quoted(other) + " next to " + Quoted(whole) + " is not supported");
    }
    const SortedJson& value = schema.at(std::string(whole));
    if (whole == "$ref") {
      Follow(value);
    } else {
      AddEntries(value, place.path + "/" + std::string(whole));
    }
  }

  static void CheckPatterns(const Place& place) {
    const SortedJson& schema = *place.schema;
    const auto check = [&](std::string_view pattern) {
      if (!NeedsEscapes(pattern)) return;
      Refuse(place, "pattern " + Quoted(pattern) +
                        ": quotes, backslashes and control characters are supported in [classes] alone");
    };
    if (const auto found = schema.find("pattern"); found != schema.end() && found->is_string()) {
      check(found->get_ref<const std::string&>());
    }
    if (const auto found = schema.find("patternProperties"); found != schema.end() && found->is_object()) {
      for (const auto& [name, value] : found->items()) check(name);
    }
  }

  // Names that an object has to have.
  static void CheckNames(const Place& place) {
    const SortedJson& schema = *place.schema;
    const auto required = schema.find("required");
    const auto properties = schema.find("properties");
    if (required != schema.end() && required->is_array()) {
      for (const SortedJson& name : *required) {
        const bool is_there = properties != schema.end() && properties->is_object() && name.is_string() &&
                              properties->contains(name.get_ref<const std::string&>());
        if (name.is_string() && !is_there) {
          Refuse(place, "\"required\" has " + Quoted(name.get_ref<const std::string&>()) +
                            ", which is not one of \"properties\"");
        }
      }
    }
    const auto fewest = schema.find("minProperties");
    if (fewest == schema.end() || !fewest->is_number() || fewest->get<double>() < 2) return;
    for (const char* names : {"propertyNames", "patternProperties"}) {
      if (schema.contains(names)) {
        Refuse(place, "\"minProperties\" next to " + Quoted(names) + " is not supported: a name may come twice");
      }
    }
  }

  void CheckTyped(const Place& place) {
    const SortedJson& schema = *place.schema;
    if (!schema.contains("type") && !place.is_name && FirstOf(schema, kImplyType).empty()) {
      auto lost = FirstOf(schema, kOfObjects);
      if (lost.empty()) lost = FirstOf(schema, kOfOthers);
      if (!lost.empty()) Refuse(place, Quoted(lost) + " without \"type\" is not supported");
    }
    CheckPatterns(place);
    CheckNames(place);
    if (IsTooNarrow(schema)) Refuse(place, "no number of six decimals is between its bounds");
    for (const std::string_view keyword : kOne) {
      if (schema.contains(keyword))
        Add(schema.at(std::string(keyword)), place.path + "/" + std::string(keyword), false);
    }
    for (const std::string_view keyword : kNamed) {
      const auto named = schema.find(keyword);
      if (named == schema.end() || !named->is_object()) continue;
      for (const auto& [name, value] : named->items()) {
        Add(value, place.path + "/" + std::string(keyword) + "/" + name, false);
      }
    }
    if (schema.contains("propertyNames")) Add(schema.at("propertyNames"), place.path + "/propertyNames", true);
    if (schema.contains("prefixItems")) AddEntries(schema.at("prefixItems"), place.path + "/prefixItems");
  }

  void AddEntries(const SortedJson& list, const std::string& path) {
    if (!list.is_array()) return;
    for (size_t i = 0; i < list.size(); ++i) Add(list[i], path + "/" + std::to_string(i), false);
  }

  // As xgrammar finds it, which refuses one that leads nowhere.
  void Follow(const SortedJson& ref) {
    if (!ref.is_string()) return;
    const auto& uri = ref.get_ref<const std::string&>();
    if (!uri.starts_with("#/")) return;
    const SortedJson* found = &root_;
    std::istringstream parts(uri.substr(2));
    for (std::string part; std::getline(parts, part, '/');) {
      if (part.empty()) continue;
      if (!found->is_object() || !found->contains(part)) return;
      found = &found->at(part);
    }
    Add(*found, uri, false);
  }

  const SortedJson& root_;
  std::vector<Place> places_;
  std::set<const SortedJson*> seen_;
};

SortedJson Parsed(const std::string& text) {
  return ConsumeBoundedJson(text, "the JSON schema", kDepth, kMaxJsonFileValues, INT64_MAX);
}

}  // namespace

void CheckSchema(const std::string& schema) {
  const ReleasedJson<SortedJson> document{Parsed(schema)};
  SchemaWalk(document.json).Run();
}

void CheckSchemasOfTag(const std::string& tag) {
  const ReleasedJson<SortedJson> document{Parsed(tag)};
  std::vector<const SortedJson*> values = {&document.json};
  while (!values.empty()) {
    const SortedJson& value = *values.back();
    values.pop_back();
    if (!value.is_structured()) continue;
    for (const auto& [key, entry] : value.items()) {
      if (value.is_object() && key == "json_schema") {
        SchemaWalk(entry).Run();
      } else {
        values.push_back(&entry);
      }
    }
  }
}

}  // namespace stoch
