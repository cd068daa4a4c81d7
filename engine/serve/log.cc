// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/log.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "loader/json_types.h"

namespace stoch::serve {

std::string FormatLogLine(const LogLine& line) {
  std::string text = line.event;
  for (const auto& [key, value] : line.fields) {
    const bool plain = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
      return c > ' ' && c < '\x7f' && c != '"' && c != '=' && c != '\\';
    });
    text += ' ' + key + '=';
    text += plain ? value : OrderedJson(value).dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
  }
  return text;
}

std::string FormatJsonLogLine(const std::string& time, const LogLine& line) {
  constexpr const char* kLevels[] = {"info", "warning", "error"};
  OrderedJson json = {{"time", time}, {"level", kLevels[static_cast<size_t>(line.level)]}, {"event", line.event}};
  for (const auto& [key, value] : line.fields) json[key] = value;
  return json.dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
}

}  // namespace stoch::serve
