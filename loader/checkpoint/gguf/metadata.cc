// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/base/error.h"
#include "loader/checkpoint/gguf/header.h"
#include "loader/quote.h"

namespace stoch::gguf {
namespace {

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

std::string_view NameOf(ValueType type) {
  switch (type) {
    case ValueType::kU8: return "u8";
    case ValueType::kI8: return "i8";
    case ValueType::kU16: return "u16";
    case ValueType::kI16: return "i16";
    case ValueType::kU32: return "u32";
    case ValueType::kI32: return "i32";
    case ValueType::kF32: return "f32";
    case ValueType::kBool: return "a boolean";
    case ValueType::kString: return "a string";
    case ValueType::kArray: return "an array";
    case ValueType::kU64: return "u64";
    case ValueType::kI64: return "i64";
    case ValueType::kF64: return "f64";
  }
  return "?";
}

// Calls visit(number) with element i in its own type; false for strings and booleans.
template <typename Visit>
bool VisitNumber(const Value& value, size_t i, const Visit& visit) {
  const std::byte* data = value.bytes.data();
  switch (value.type) {
    case ValueType::kU8: visit(Load<uint8_t>(data + i)); return true;
    case ValueType::kI8: visit(Load<int8_t>(data + i)); return true;
    case ValueType::kU16: visit(Load<uint16_t>(data + 2 * i)); return true;
    case ValueType::kI16: visit(Load<int16_t>(data + 2 * i)); return true;
    case ValueType::kU32: visit(Load<uint32_t>(data + 4 * i)); return true;
    case ValueType::kI32: visit(Load<int32_t>(data + 4 * i)); return true;
    case ValueType::kF32: visit(Load<float>(data + 4 * i)); return true;
    case ValueType::kU64: visit(Load<uint64_t>(data + 8 * i)); return true;
    case ValueType::kI64: visit(Load<int64_t>(data + 8 * i)); return true;
    case ValueType::kF64: visit(Load<double>(data + 8 * i)); return true;
    case ValueType::kBool:
    case ValueType::kString:
    case ValueType::kArray: return false;
  }
  return false;
}

std::optional<int64_t> IntegerAt(const Value& value, size_t i) {
  std::optional<int64_t> result;
  VisitNumber(value, i, [&](auto number) {
    if constexpr (std::is_integral_v<decltype(number)>) {
      const bool fits = std::is_signed_v<decltype(number)> || static_cast<uint64_t>(number) <= uint64_t{INT64_MAX};
      if (fits) result = static_cast<int64_t>(number);
    }
  });
  return result;
}

std::optional<double> NumberAt(const Value& value, size_t i) {
  std::optional<double> result;
  VisitNumber(value, i, [&](auto number) {
    if (std::isfinite(static_cast<double>(number))) result = static_cast<double>(number);
  });
  return result;
}

}  // namespace

std::vector<std::string_view> Metadata::Keys() const {
  std::vector<std::string_view> keys;
  for (const auto& [key, value] : values_) keys.push_back(key);
  return keys;
}

bool Metadata::IsOff(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr || (value->array && value->count == 0)) return true;
  const auto zero = [](std::byte b) { return b == std::byte{0}; };  // an empty string is a length of 0
  return !value->array && std::all_of(value->bytes.begin(), value->bytes.end(), zero);
}

void Metadata::Fail(std::string_view key, const std::string& what) const {
  throw InvalidInput(where_ + ": " + Quoted(key) + ": " + what);
}

void Metadata::Missing(std::string_view key) const { Fail(key, "is missing"); }

const Value* Metadata::Find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

const Value* Metadata::FindOne(std::string_view key) const {
  const Value* value = Find(key);
  if (value != nullptr && value->array) Fail(key, "expected a single value, got an array");
  return value;
}

const Value* Metadata::FindArray(std::string_view key) const {
  const Value* value = Find(key);
  if (value != nullptr && !value->array) Fail(key, "expected an array, got " + std::string(NameOf(value->type)));
  return value;
}

std::optional<std::string_view> Metadata::String(std::string_view key) const {
  const Value* value = FindOne(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != ValueType::kString) Fail(key, "expected a string, got " + std::string(NameOf(value->type)));
  return std::string_view(reinterpret_cast<const char*>(value->bytes.data()) + 8, value->bytes.size() - 8);
}

std::optional<int64_t> Metadata::Integer(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->array && value->count == 0) Fail(key, "expected an integer, got an empty array");
  const std::optional<int64_t> first = IntegerAt(*value, 0);
  if (!first) Fail(key, "expected an integer below 2^63, got " + std::string(NameOf(value->type)));
  for (uint64_t i = 1; i < value->count; ++i) {
    if (IntegerAt(*value, i) != first) Fail(key, "expected the same number for every layer, got several");
  }
  return first;
}

std::optional<double> Metadata::Number(std::string_view key) const {
  const Value* value = FindOne(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> number = NumberAt(*value, 0);
  if (!number) Fail(key, "expected a finite number, got " + std::string(NameOf(value->type)));
  return number;
}

std::optional<bool> Metadata::Boolean(std::string_view key) const {
  const Value* value = FindOne(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != ValueType::kBool) Fail(key, "expected a boolean, got " + std::string(NameOf(value->type)));
  return value->bytes.front() != std::byte{0};
}

std::optional<std::vector<std::string_view>> Metadata::Strings(std::string_view key) const {
  const Value* value = FindArray(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != ValueType::kString) Fail(key, "expected strings, got " + std::string(NameOf(value->type)));
  std::vector<std::string_view> strings;
  strings.reserve(value->count);
  const std::byte* at = value->bytes.data();
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto size = Load<uint64_t>(at);
    strings.emplace_back(reinterpret_cast<const char*>(at) + 8, size);
    at += 8 + size;
  }
  return strings;
}

std::optional<std::vector<int64_t>> Metadata::Integers(std::string_view key) const {
  const Value* value = FindArray(key);
  if (value == nullptr) return std::nullopt;
  std::vector<int64_t> integers;
  integers.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> integer = IntegerAt(*value, i);
    if (!integer) Fail(key, "expected integers, got " + std::string(NameOf(value->type)));
    integers.push_back(*integer);
  }
  return integers;
}

std::optional<std::vector<double>> Metadata::Numbers(std::string_view key) const {
  const Value* value = FindArray(key);
  if (value == nullptr) return std::nullopt;
  std::vector<double> numbers;
  numbers.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<double> number = NumberAt(*value, i);
    if (!number) Fail(key, "expected finite numbers, got others");
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace stoch::gguf
