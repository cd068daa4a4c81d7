// SPDX-License-Identifier: Apache-2.0
#include "loader/tokenizer/json.h"

#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/tokenizer/limits.h"

namespace stoch {
namespace {

using nlohmann::json;

[[noreturn]] void WrongType(const json& value, const std::string& where, std::string_view expected) {
  throw InvalidInput(where + ": expected " + std::string(expected) + ", got " + std::string(JsonTypeName(value)));
}

std::string Member(const std::string& where, std::string_view key) { return where + ": " + std::string(key); }

}  // namespace

const json* FindMember(const json& object, std::string_view key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::string> StringMember(const json& object, std::string_view key, const std::string& where) {
  const json* member = FindMember(object, key);
  if (member == nullptr) return std::nullopt;
  return StringOf(*member, Member(where, key));
}

const std::string& StringOf(const json& value, const std::string& where) {
  if (!value.is_string()) WrongType(value, where, "a string");
  return value.get_ref<const std::string&>();
}

std::optional<bool> BoolMember(const json& object, std::string_view key, const std::string& where) {
  const json* member = FindMember(object, key);
  if (member == nullptr) return std::nullopt;
  if (!member->is_boolean()) WrongType(*member, Member(where, key), "true or false");
  return member->get<bool>();
}

int32_t TokenIdOf(const json& value, const std::string& where) {
  if (!value.is_number_integer()) WrongType(value, where, "a token id");
  const bool negative = !value.is_number_unsigned() && value.get<int64_t>() < 0;
  if (negative || value.get<uint64_t>() > static_cast<uint64_t>(kMaxTokenId)) {
    throw InvalidInput(where + ": expected a token id in 0 .. " + std::to_string(kMaxTokenId) + ", got " +
                       value.dump());
  }
  return value.get<int32_t>();
}

void ExpectObject(const json& value, const std::string& where) {
  if (!value.is_object()) WrongType(value, where, "an object");
}

void ExpectArray(const json& value, const std::string& where) {
  if (!value.is_array()) WrongType(value, where, "a list");
}

}  // namespace stoch
