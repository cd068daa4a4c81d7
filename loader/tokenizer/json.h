// SPDX-License-Identifier: Apache-2.0
// Typed access to the JSON of tokenizer files, with messages that name the key.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace stoch {

// The member `key` of an object, or nullptr where it is absent or null.
const nlohmann::json* FindMember(const nlohmann::json& object, std::string_view key);

// Typed members; nullopt where absent or null. Errors: InvalidInput naming where, key, expected and got.
std::optional<std::string> StringMember(const nlohmann::json& object, std::string_view key, const std::string& where);
std::optional<bool> BoolMember(const nlohmann::json& object, std::string_view key, const std::string& where);

// Errors: InvalidInput unless value is a string.
const std::string& StringOf(const nlohmann::json& value, const std::string& where);

// A token id.
// Errors: InvalidInput if value is no integer in 0 .. kMaxTokenId.
int32_t TokenIdOf(const nlohmann::json& value, const std::string& where);

// Errors: InvalidInput unless value is of the type.
void ExpectObject(const nlohmann::json& value, const std::string& where);
void ExpectArray(const nlohmann::json& value, const std::string& where);

}  // namespace stoch
