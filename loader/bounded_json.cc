#include "loader/bounded_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "kernels/base/error.h"
#include "loader/quote.h"

namespace stoch {

nlohmann::json ParseBoundedJson(std::string_view text, const std::string& where, int max_depth) {
  using Json = nlohmann::json;
  std::vector<std::set<std::string>> keys;  // of the objects around the current place
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start: keys.emplace_back(); [[fallthrough]];
      case Json::parse_event_t::array_start:
        if (depth >= max_depth) {
          throw InvalidInput(where + ": expected JSON nested at most " + std::to_string(max_depth) + " deep, got more");
        }
        break;
      case Json::parse_event_t::object_end: keys.pop_back(); break;
      case Json::parse_event_t::key: {
        const std::string& key = value.get_ref<const std::string&>();
        if (!keys.back().insert(key).second) throw InvalidInput(where + ": key " + Quoted(key) + " is given twice");
        break;
      }
      default: break;
    }
    return true;
  };
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {  // the parser would stop there
    throw InvalidInput(where + ": expected JSON, got a zero byte at byte " + std::to_string(zero));
  }
  try {
    return Json::parse(text, check);
  } catch (const Json::parse_error& error) {
    throw InvalidInput(where + ": expected JSON, got something else at byte " + std::to_string(error.byte));
  } catch (const Json::exception&) {  // a number outside double
    throw InvalidInput(where + ": expected JSON with numbers a double can hold, got a larger one");
  }
}

std::string_view JsonTypeName(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::null: return "null";
    case nlohmann::json::value_t::object: return "an object";
    case nlohmann::json::value_t::array: return "an array";
    case nlohmann::json::value_t::string: return "a string";
    case nlohmann::json::value_t::boolean: return "a boolean";
    case nlohmann::json::value_t::number_integer:
    case nlohmann::json::value_t::number_unsigned: return "an integer";
    case nlohmann::json::value_t::number_float: return "a fraction";
    default: return "something else";
  }
}

}  // namespace stoch
