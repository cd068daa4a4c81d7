// SPDX-License-Identifier: Apache-2.0
// One JSON object of a config file, for reads that name the key in their errors. Internal to this folder.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stoch {

// A key that is null counts as absent. Remembers which keys were asked for, so that RefuseOthers knows the rest.
// Requires: the object outlives it.
// Errors: InvalidInput "FILE: KEY: expected ..., got ..." from every read of a value that is not as the call wants it.
class ConfigKeys {
 public:
  using Json = nlohmann::json;

  ConfigKeys(const Json& object, std::string where);

  const Json* Find(const char* key) const;
  // Whether the key is there with null: for the few keys whose absence means something else.
  bool IsNull(const char* key) const;
  ConfigKeys Object(const char* key) const { return {*Find(key), where_ + ": " + key}; }  // Requires: Find(key)

  int64_t Integer(const char* key, int64_t min, int64_t max, std::optional<int64_t> fallback = {}) const;
  // A number in (above, below).
  double Number(const char* key, double above, double below, std::optional<double> fallback = {}) const;
  bool Boolean(const char* key, bool fallback) const;
  std::optional<std::string> String(const char* key) const;
  // An id or a list of ids, each in [0, vocab_size).
  std::vector<int32_t> Ids(const char* key, int64_t vocab_size) const;
  // A list of `size` numbers in (above, below).
  std::vector<double> Numbers(const char* key, double above, double below, size_t size) const;
  // A list of at most `most` integers in [min, max]; empty where the key is absent.
  std::vector<int64_t> Integers(const char* key, int64_t min, int64_t max, size_t most) const;

  // Errors: InvalidInput for a key that nobody asked for, that is not in `meaningless` and does not begin with "_":
  //         ignoring it could change what the model computes. null, false, 0 and empty values switch nothing on.
  void RefuseOthers(std::span<const std::string_view> meaningless) const;

  [[noreturn]] void Fail(const std::string& what) const;

 private:
  int64_t ToInteger(const Json& value, const char* key, int64_t min, int64_t max) const;

  const Json& object_;
  std::string where_;
  mutable std::set<std::string, std::less<>> known_;
};

}  // namespace stoch
