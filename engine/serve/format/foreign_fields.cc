// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/format/foreign_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/serve/http/request_error.h"
#include "loader/near_name.h"

namespace stoch::serve {
namespace {

using Json = SortedJson;

constexpr int kBadRequest = 400;

bool IsIn(FieldPlace field, FieldPlace place) {
  const bool request = place == FieldPlace::kCompletion || place == FieldPlace::kChat;
  return field == place || (field == FieldPlace::kEither && request);
}

bool IsNeutral(const ForeignField& field, const Json& value) {
  if (field.neutral == nullptr) return true;
  for (std::string_view rest = field.neutral; !rest.empty();) {
    const size_t end = std::min(rest.find('|'), rest.size());
    if (value == Json::parse(rest.substr(0, end))) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

[[noreturn]] void RefuseUnknown(const JsonFields& fields, const std::string& name) {
  const std::string path = ShortName(fields.Path(name));
  const std::string nearest = NearName(name, {fields.asked_for().begin(), fields.asked_for().end()});
  throw RequestError(kBadRequest, path,
                     path + ": this server has no such field" +
                         (nearest.empty() ? "" : "; did you mean " + fields.Path(nearest) + "?"));
}

[[noreturn]] void RefuseValue(const JsonFields& fields, const ForeignField& field) {
  const std::string path = fields.Path(field.name);
  std::string message = path + ": is not supported";
  const std::string_view neutral = field.neutral;
  if (!neutral.empty()) {
    message += "; allowed is " + std::string(neutral.substr(0, neutral.find('|'))) + ", which changes nothing";
  }
  if (*field.note != '\0') message += std::string("; ") + field.note;
  throw RequestError(kBadRequest, path, message);
}

}  // namespace

IgnoredFields RefuseForeignFields(const JsonFields& fields, FieldPlace place) {
  constexpr size_t kNames = 8;
  IgnoredFields hints;
  for (const auto& [name, value] : fields.object().items()) {
    if (value.is_null() || fields.asked_for().contains(name)) continue;
    const std::span<const ForeignField> all = ForeignFields();
    const auto field = std::find_if(all.begin(), all.end(), [&, &key = name](const ForeignField& known) {
      return known.name == key && IsIn(known.place, place);
    });
    if (field == all.end()) RefuseUnknown(fields, name);
    if (!IsNeutral(*field, value)) RefuseValue(fields, *field);
    if (field->neutral != nullptr) continue;
    ++hints.count;
    if (hints.names.size() < kNames) hints.names.push_back(fields.Path(name));
  }
  return hints;
}

}  // namespace stoch::serve
