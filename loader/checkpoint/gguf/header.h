// SPDX-License-Identifier: Apache-2.0
// The header of a GGUF file: metadata and where its tensors are. The file is treated as hostile.
//
// Source: ggml-org/ggml, its description of the format; versions 2 and 3, little endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "loader/checkpoint/gguf/types.h"

namespace stoch::gguf {

// By their numbers in files.
enum class ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// One value, still in the file. Arrays are never nested.
struct Value {
  ValueType type = ValueType::kU8;  // of an array: of its elements
  bool array = false;
  uint64_t count = 1;
  std::span<const std::byte> bytes;  // without type and count
};

// Keys to values, with typed access. The file must outlive it. Threads: safe.
//
// Errors: InvalidInput naming file, key, expected and got, where a key has another type or is out of range.
class Metadata {
 public:
  explicit Metadata(std::string where) : where_(std::move(where)) {}
  bool Add(std::string_view key, const Value& value) { return values_.emplace(key, value).second; }

  const std::string& where() const { return where_; }
  bool Has(std::string_view key) const { return values_.contains(key); }
  std::vector<std::string_view> Keys() const;
  // Whether the key is absent, or says false, 0 or nothing: no feature is switched on by it.
  bool IsOff(std::string_view key) const;
  // nullopt where the key is absent.
  std::optional<std::string_view> String(std::string_view key) const;
  std::optional<int64_t> Integer(std::string_view key) const;  // an array of equal integers counts as that integer
  std::optional<double> Number(std::string_view key) const;    // an integer or a float
  std::optional<bool> Boolean(std::string_view key) const;
  std::optional<std::vector<std::string_view>> Strings(std::string_view key) const;
  std::optional<std::vector<int64_t>> Integers(std::string_view key) const;
  std::optional<std::vector<double>> Numbers(std::string_view key) const;
  // The value of a key that must be there.
  template <typename T>
  T Required(std::string_view key, std::optional<T> value) const {
    if (!value) Missing(key);
    return *std::move(value);
  }

  [[noreturn]] void Fail(std::string_view key, const std::string& what) const;

 private:
  [[noreturn]] void Missing(std::string_view key) const;
  const Value* Find(std::string_view key) const;
  const Value* FindOne(std::string_view key) const;    // Errors: an array
  const Value* FindArray(std::string_view key) const;  // Errors: no array

  std::string where_;
  std::map<std::string, Value, std::less<>> values_;
};

struct Tensor {
  std::string name;
  Type type = Type::kF32;
  std::vector<int64_t> shape;  // rows first, as Hugging Face writes shapes
  int64_t begin_bytes = 0;     // from the start of the file
  int64_t size_bytes = 0;
};

struct Header {
  Metadata metadata;
  std::vector<Tensor> tensors;
};

// The checked header of a whole file in memory (only its header is read).
// Errors: InvalidInput naming `where`, the key or tensor, expected and got: no GGUF, another version or byte order, text
//         cut short, a key or name twice, a type that is not read, a shape that overflows or whose rows are no whole
//         blocks, data that are misaligned, overlap or leave the file.
Header ParseHeader(std::span<const std::byte> file, const std::string& where);

}  // namespace stoch::gguf
