// SPDX-License-Identifier: Apache-2.0
// Typed reading of the fields of a request object, with errors that name the field.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "loader/json_types.h"

namespace stoch::serve {

// Hints of a request that were not read: how many, and the beginnings of the first few names.
struct IgnoredFields {
  int64_t count = 0;
  std::vector<std::string> names;
};

// A name of a client's, no longer than is good in messages and logs.
std::string ShortName(const std::string& name);

// A field that is absent or null has its default. Everything throws RequestError(400) for another type or a value out
// of range. Must not outlive the object.
class JsonFields {
 public:
  // where: "" for the request itself, else the name in front of the fields' ("messages[0].").
  explicit JsonFields(const SortedJson& object, std::string where = "");

  const SortedJson* Find(const std::string& name);  // nullptr where absent or null
  bool IsNull(const std::string& name) const;       // it is there, as null
  bool Bool(const std::string& name, bool fallback);
  std::optional<int64_t> Integer(const std::string& name, int64_t low, int64_t high);
  std::optional<double> Number(const std::string& name);
  std::optional<std::string> String(const std::string& name);

  std::string Path(const std::string& name) const { return where_ + name; }
  const SortedJson& object() const { return object_; }
  const std::set<std::string>& asked_for() const { return known_; }

 private:
  const SortedJson& object_;
  std::string where_;
  std::set<std::string> known_;
};

// Throws RequestError(400) "PATH: expected EXPECTED, got TYPE".
[[noreturn]] void ThrowWrongType(const std::string& path, const std::string& expected, const SortedJson& got);

// The token ids of an array. Errors: RequestError(400) naming path[index] for what is no id below vocab_size.
std::vector<int32_t> ReadIds(const SortedJson& array, const std::string& path, int64_t vocab_size);

}  // namespace stoch::serve
