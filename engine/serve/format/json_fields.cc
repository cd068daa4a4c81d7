// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/format/json_fields.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/serve/http/request_error.h"
#include "loader/bounded_json.h"

namespace stoch::serve {
namespace {

constexpr int kBadRequest = 400;

// An integer JSON number that an int64_t holds; the parser makes larger ones unsigned.
bool IsInt64(const SortedJson& value) {
  return value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX);
}

}  // namespace

void ThrowWrongType(const std::string& path, const std::string& expected, const SortedJson& got) {
  throw RequestError(kBadRequest, path, path + ": expected " + expected + ", got " + std::string(JsonTypeName(got)));
}

JsonFields::JsonFields(const SortedJson& object, std::string where) : object_(object), where_(std::move(where)) {
  if (object.is_object()) return;
  if (!where_.empty()) ThrowWrongType(where_.substr(0, where_.size() - 1), "an object", object);
  throw RequestError(kBadRequest, "", "the request body: expected an object, got " + std::string(JsonTypeName(object)));
}

const SortedJson* JsonFields::Find(const std::string& name) {
  known_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool JsonFields::IsNull(const std::string& name) const {
  const auto found = object_.find(name);
  return found != object_.end() && found->is_null();
}

bool JsonFields::Bool(const std::string& name, bool fallback) {
  const SortedJson* value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) ThrowWrongType(Path(name), "true or false", *value);
  return value->get<bool>();
}

std::optional<int64_t> JsonFields::Integer(const std::string& name, int64_t low, int64_t high) {
  const SortedJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  // Digits that are too many become a float when they are read.
  if (value->is_number_float() && std::abs(value->get<double>()) >= 0x1p63) {
    throw RequestError(kBadRequest, Path(name),
                       Path(name) + ": allowed is " + std::to_string(low) + ".." + std::to_string(high) +
                           ", got a number that 64 bits do not hold");
  }
  if (!value->is_number_integer()) ThrowWrongType(Path(name), "an integer", *value);
  if (!IsInt64(*value) || value->get<int64_t>() < low || value->get<int64_t>() > high) {
    throw RequestError(
        kBadRequest, Path(name),
        Path(name) + " = " + value->dump() + ": allowed is " + std::to_string(low) + ".." + std::to_string(high));
  }
  return value->get<int64_t>();
}

std::optional<double> JsonFields::Number(const std::string& name) {
  const SortedJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) ThrowWrongType(Path(name), "a number", *value);
  return value->get<double>();
}

std::optional<std::string> JsonFields::String(const std::string& name) {
  const SortedJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) ThrowWrongType(Path(name), "a string", *value);
  return value->get<std::string>();
}

std::string ShortName(const std::string& name) {
  constexpr size_t kMaxBytes = 64;
  return name.size() <= kMaxBytes ? name : name.substr(0, kMaxBytes) + "...";
}

std::vector<int32_t> ReadIds(const SortedJson& array, const std::string& path, int64_t vocab_size) {
  if (!array.is_array()) ThrowWrongType(path, "a list of token ids", array);
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    const std::string at = path + "[" + std::to_string(i) + "]";
    if (!array[i].is_number_integer()) ThrowWrongType(at, "a token id", array[i]);
    if (!IsInt64(array[i]) || array[i].get<int64_t>() < 0 || array[i].get<int64_t>() >= vocab_size) {
      throw RequestError(kBadRequest, at,
                         at + ": token id " + array[i].dump() + " is outside the vocabulary; allowed is 0.." +
                             std::to_string(vocab_size - 1));
    }
    ids.push_back(array[i].get<int32_t>());
  }
  return ids;
}

}  // namespace stoch::serve
