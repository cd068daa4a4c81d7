// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/schema_check.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/grammar/notation.h"
#include "engine/grammar/schema_values.h"
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
constexpr std::string_view kOptions[] = {"anyOf", "oneOf", "allOf"};
constexpr std::string_view kBounds[] = {"minLength",        "maxLength",        "minimum",   "maximum",
                                        "exclusiveMinimum", "exclusiveMaximum", "minItems",  "maxItems",
                                        "minProperties",    "maxProperties",    "multipleOf"};
// Formats that xgrammar reads, in front of a pattern; others are annotations.
constexpr std::string_view kFormats[] = {
    "email",    "date", "time", "date-time",     "duration",     "ipv4",         "ipv6",
    "hostname", "uuid", "uri",  "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"};
constexpr int kMostOptions = 32;  // nested, next to a type
constexpr std::string_view kImplyType[] = {"properties", "additionalProperties", "unevaluatedProperties",
                                           "items",      "prefixItems",          "unevaluatedItems"};

constexpr std::string_view kImplyArray[] = {"items", "prefixItems", "unevaluatedItems"};

template <class List>
std::string_view FirstOf(const SortedJson& schema, const List& keywords) {
  for (const std::string_view keyword : keywords) {
    if (schema.contains(keyword)) return keyword;
  }
  return {};
}

std::set<std::string> NamesOf(const SortedJson& type) {
  std::set<std::string> names;
  for (const SortedJson& one : type.is_array() ? type : SortedJson::array({type})) {
    if (one.is_string()) names.insert(one.get<std::string>());
  }
  return names;
}

// The types of `inner` that are none of `outer`: "integer, null".
std::string TypesBeyond(std::set<std::string> outer, const std::set<std::string>& inner) {
  if (outer.contains("number")) outer.insert("integer");
  std::string beyond;
  for (const std::string& type : inner) {
    if (!outer.contains(type)) beyond += (beyond.empty() ? "" : ", ") + type;
  }
  return beyond;
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
    CheckForms(place);
    if (const auto whole = FirstOf(schema, kWhole); !whole.empty()) {
      CheckWhole(place, whole);
    } else {
      CheckTyped(place);
    }
  }

  // Refuses keywords whose values are of a kind that xgrammar does not name.
  static void CheckForms(const Place& place) {
    const SortedJson& schema = *place.schema;
    for (const auto& [name, value] : schema.items()) {
      const std::string_view keyword = name;
      if ((keyword == "pattern" || keyword == "format" || keyword == "$ref") && !value.is_string()) {
        Refuse(place, Quoted(keyword) + " is not a string");
      }
      const bool is_bound = std::find(std::begin(kBounds), std::end(kBounds), keyword) != std::end(kBounds);
      if (is_bound && !value.is_number()) Refuse(place, Quoted(keyword) + " is not a number");
      if (keyword == "type" && value.is_array() && value.empty()) Refuse(place, "\"type\" is empty");
    }
    const auto required = schema.find("required");
    if (required == schema.end()) return;
    const auto is_string = [](const SortedJson& name) { return name.is_string(); };
    if (!required->is_array() || !std::all_of(required->begin(), required->end(), is_string)) {
      Refuse(place, "\"required\" is not a list of strings");
    }
  }

  // Types that a value of the schema may have; "any" is one where it does not say. depth: of schemas that lead here.
  std::set<std::string> TypesOf(const SortedJson& schema, int depth = 0) const {
    if (!schema.is_object() || depth == kMostOptions) return {"any"};
    if (schema.contains("type")) return NamesOf(schema.at("type"));
    const std::string whole(FirstOf(schema, kWhole));
    if (whole.empty()) {
      if (FirstOf(schema, kImplyType).empty()) return {"any"};
      return {FirstOf(schema, kImplyArray).empty() ? "object" : "array"};
    }
    const SortedJson& read = schema.at(whole);
    if (whole == "const") return {TypeOf(read)};
    if (whole == "$ref") {
      const SortedJson* found = Find(read);
      return found == nullptr ? std::set<std::string>{"any"} : TypesOf(*found, depth + 1);
    }
    std::set<std::string> types;
    if (!read.is_array()) return types;
    for (const SortedJson& entry : read) {
      if (whole == "enum") types.insert(TypeOf(entry));
      if (whole != "enum") types.merge(TypesOf(entry, depth + 1));
    }
    return types;
  }

  // Refuses values or options that are not of the `type` next to them, which xgrammar does not read.
  void CheckTypeBeside(const Place& place, std::string_view whole) const {
    SortedJson rest = *place.schema;
    if (!rest.contains("type")) return;
    const std::set<std::string> type = NamesOf(rest.at("type"));
    rest.erase("type");
    const std::string beyond = TypesBeyond(type, TypesOf(rest));
    if (!beyond.empty()) Refuse(place, Quoted(whole) + " has what is not of \"type\": " + beyond);
  }

  // Refuses values of const and enum that do not keep to the bounds next to them, and next to them what is not compared.
  static void CheckValues(const Place& place, std::string_view whole) {
    const SortedJson& schema = *place.schema;
    const SortedJson& read = schema.at(std::string(whole));
    const SortedJson values = whole == "const" ? SortedJson::array({read}) : read;
    if (const auto other = FirstOf(schema, kOptions); !other.empty()) RefuseBeside(place, other, whole);
    if (whole == "const" && schema.contains("enum")) {
      const SortedJson& choices = schema.at("enum");
      if (std::find(choices.begin(), choices.end(), read) == choices.end()) {
        Refuse(place, "\"const\" is not one of \"enum\"");
      }
    }
    if (!values.is_array()) return;
    for (const SortedJson& value : values) {
      for (const std::string_view keyword : UncomparedBy(value)) {
        if (schema.contains(keyword)) RefuseBeside(place, keyword, whole);
      }
      if (const auto bound = BrokenBound(schema, value); !bound.empty()) {
        Refuse(place, Quoted(whole) + " has a value that " + Quoted(bound) + " does not allow");
      }
    }
  }

  [[noreturn]] static void RefuseBeside(const Place& place, std::string_view keyword, std::string_view whole) {
    Refuse(place, Quoted(keyword) + " next to " + Quoted(whole) + " is not supported");
  }

  void CheckWhole(const Place& place, std::string_view whole) {
    CheckTypeBeside(place, whole);
    if (whole == "const" || whole == "enum") return CheckValues(place, whole);
    const SortedJson& schema = *place.schema;
    std::vector<std::string_view> dropped(std::begin(kOfObjects), std::end(kOfObjects));
    dropped.insert(dropped.end(), std::begin(kOfOthers), std::end(kOfOthers));
    for (const std::string_view other : kWhole) {
      if (other != whole) dropped.push_back(other);
    }
    if (const auto other = FirstOf(schema, dropped); !other.empty()) RefuseBeside(place, other, whole);
    const auto more = schema.find("additionalProperties");
    if (more != schema.end() && *more != true) RefuseBeside(place, "additionalProperties", whole);
    const SortedJson& value = schema.at(std::string(whole));
    if (whole == "$ref") {
      if (const SortedJson* found = Find(value)) Add(*found, value.get<std::string>(), false);
      return;
    }
    if (value.is_array() && value.empty()) Refuse(place, Quoted(whole) + " is empty");
    AddEntries(value, place.path + "/" + std::string(whole));
  }

  static void CheckPatterns(const Place& place) {
    const SortedJson& schema = *place.schema;
    const auto check = [&](std::string_view pattern) {
      if (const std::string why = WhyMisread(pattern, Notation::kRegex); !why.empty()) {
        Refuse(place, "pattern " + Quoted(pattern) + ": " + why);
      }
      if (!NeedsEscapes(pattern)) return;
      Refuse(place, "pattern " + Quoted(pattern) +
                        ": quotes, backslashes and control characters are supported in [classes] alone");
    };
    if (const auto found = schema.find("pattern"); found != schema.end() && found->is_string()) {
      check(found->get_ref<const std::string&>());
      const auto format = schema.find("format");
      const bool is_read = format != schema.end() && std::find(std::begin(kFormats), std::end(kFormats),
                                                               format->get<std::string>()) != std::end(kFormats);
      if (is_read) RefuseBeside(place, "pattern", "format");
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

  // Where a $ref leads, as xgrammar finds it, which refuses one that leads nowhere; null: nowhere.
  const SortedJson* Find(const SortedJson& ref) const {
    if (!ref.is_string()) return nullptr;
    const auto& uri = ref.get_ref<const std::string&>();
    if (uri == "#") return &root_;
    if (!uri.starts_with("#/")) return nullptr;
    const SortedJson* found = &root_;
    std::istringstream parts(uri.substr(2));
    for (std::string part; std::getline(parts, part, '/');) {
      if (part.empty()) continue;
      if (!found->is_object() || !found->contains(part)) return nullptr;
      found = &found->at(part);
    }
    return found;
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
