// Typed reading of the fields of a request object, with errors that name the field.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace stoch::serve {

// A field that is absent or null has its default. Everything throws RequestError(400) for another type or a value out
// of range. Must not outlive the object.
class JsonFields {
 public:
  // where: "" for the request itself, else the name in front of the fields' ("messages[0].").
  explicit JsonFields(const nlohmann::json& object, std::string where = "");

  const nlohmann::json* Find(const std::string& name);  // nullptr where absent or null
  bool Bool(const std::string& name, bool fallback);
  std::optional<int64_t> Integer(const std::string& name, int64_t low, int64_t high);
  std::optional<double> Number(const std::string& name);
  std::optional<std::string> String(const std::string& name);
  // What: the fields that nobody asked for.
  std::vector<std::string> Unknown() const;

  std::string Path(const std::string& name) const { return where_ + name; }

 private:
  const nlohmann::json& object_;
  std::string where_;
  std::set<std::string> known_;
};

// What: throws RequestError(400) "PATH: expected EXPECTED, got TYPE".
[[noreturn]] void ThrowWrongType(const std::string& path, const std::string& expected, const nlohmann::json& got);

// What:   the token ids of an array. Errors: RequestError(400) naming path[index] for what is no id below vocab_size.
std::vector<int32_t> ReadIds(const nlohmann::json& array, const std::string& path, int64_t vocab_size);

}  // namespace stoch::serve
