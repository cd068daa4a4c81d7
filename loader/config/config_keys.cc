// SPDX-License-Identifier: Apache-2.0
#include "loader/config/config_keys.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/quote.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxEndIds = 256;

// What a feature that is off, or a list of nothing, looks like.
bool IsNothing(const Json& value) {
  if (value.is_number()) return value == 0;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_boolean() ? value == false : value.empty();
}

}  // namespace

ConfigKeys::ConfigKeys(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object()) Fail("expected an object, got " + std::string(JsonTypeName(object)));
}

const Json* ConfigKeys::Find(const char* key) const {
  known_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigKeys::IsNull(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && found->is_null();
}

int64_t ConfigKeys::Integer(const char* key, int64_t min, int64_t max, std::optional<int64_t> fallback) const {
  const Json* value = Find(key);
  if (value == nullptr) {
    if (!fallback) Fail(std::string(key) + ": expected an integer, got nothing");
    return *fallback;
  }
  return ToInteger(*value, key, min, max);
}

double ConfigKeys::Number(const char* key, double above, double below, std::optional<double> fallback) const {
  const Json* value = Find(key);
  if (value == nullptr) {
    if (!fallback) Fail(std::string(key) + ": expected a number, got nothing");
    return *fallback;
  }
  if (!value->is_number()) Fail(std::string(key) + ": expected a number, got " + std::string(JsonTypeName(*value)));
  const double number = value->get<double>();
  if (!(number > above && number < below)) {
    Fail(std::string(key) + ": expected a number above " + Json(above).dump() + " and below " + Json(below).dump() +
         ", got " + value->dump());
  }
  return number;
}

bool ConfigKeys::Boolean(const char* key, bool fallback) const {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) Fail(std::string(key) + ": expected a boolean, got " + std::string(JsonTypeName(*value)));
  return value->get<bool>();
}

std::optional<std::string> ConfigKeys::String(const char* key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) Fail(std::string(key) + ": expected a string, got " + std::string(JsonTypeName(*value)));
  return value->get<std::string>();
}

std::vector<int32_t> ConfigKeys::Ids(const char* key, int64_t vocab_size) const {
  const Json* value = Find(key);
  if (value == nullptr) return {};
  std::vector<int32_t> ids;
  if (value->is_array()) {
    if (value->size() > kMaxEndIds) {
      Fail(std::string(key) + ": expected at most " + std::to_string(kMaxEndIds) + " ids, got " +
           std::to_string(value->size()));
    }
    for (const Json& id : *value) ids.push_back(static_cast<int32_t>(ToInteger(id, key, 0, vocab_size - 1)));
  } else {
    ids.push_back(static_cast<int32_t>(ToInteger(*value, key, 0, vocab_size - 1)));
  }
  return ids;
}

std::vector<int64_t> ConfigKeys::Integers(const char* key, int64_t min, int64_t max, size_t most) const {
  const Json* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_array() || value->size() > most) {
    Fail(std::string(key) + ": expected a list of at most " + std::to_string(most) + " integers, got " +
         (value->is_array() ? std::to_string(value->size()) : std::string(JsonTypeName(*value))));
  }
  std::vector<int64_t> integers;
  for (const Json& entry : *value) integers.push_back(ToInteger(entry, key, min, max));
  return integers;
}

std::vector<double> ConfigKeys::Numbers(const char* key, double above, double below, size_t size) const {
  const Json* value = Find(key);
  const bool is_list = value != nullptr && value->is_array();
  if (!is_list || value->size() != size) {
    Fail(std::string(key) + ": expected a list of " + std::to_string(size) + " numbers, got " +
         (is_list            ? std::to_string(value->size())
          : value == nullptr ? "nothing"
                             : std::string(JsonTypeName(*value))));
  }
  std::vector<double> numbers;
  for (const Json& entry : *value) {
    const double number = entry.is_number() ? entry.get<double>() : above;
    if (!(number > above && number < below)) {
      Fail(std::string(key) + ": expected numbers above " + Json(above).dump() + " and below " + Json(below).dump() +
           ", got " + Quoted(entry.dump()));
    }
    numbers.push_back(number);
  }
  return numbers;
}

void ConfigKeys::RefuseOthers(std::span<const std::string_view> meaningless) const {
  for (const auto& [key, value] : object_.items()) {
    if (key.starts_with('_') || IsNothing(value) || known_.contains(key)) continue;
    if (std::find(meaningless.begin(), meaningless.end(), key) != meaningless.end()) continue;
    constexpr size_t kShown = 40;
    std::string shown = value.dump();
    if (shown.size() > kShown) shown = std::string(JsonTypeName(value));
    Fail(Quoted(key) + ": expected only keys whose meaning is known for this model_type, got " + shown +
         "; a model that depends on it needs code for it, and where nothing does it can be taken out of the file");
  }
}

void ConfigKeys::Fail(const std::string& what) const { throw InvalidInput(where_ + ": " + what); }

int64_t ConfigKeys::ToInteger(const Json& value, const char* key, int64_t min, int64_t max) const {
  if (!value.is_number_integer()) {
    Fail(std::string(key) + ": expected an integer, got " + std::string(JsonTypeName(value)));
  }
  const bool above_int64 = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t integer = above_int64 ? INT64_MAX : value.get<int64_t>();
  if (integer < min || integer > max) {
    Fail(std::string(key) + ": expected " + std::to_string(min) + " to " + std::to_string(max) + ", got " +
         value.dump());
  }
  return integer;
}

}  // namespace stoch
