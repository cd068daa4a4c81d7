// SPDX-License-Identifier: Apache-2.0
// Structured log lines of the server. The library hands them to a sink; what prints them is the tool's business.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace stoch::serve {

enum class LogLevel : unsigned char { kInfo, kWarning, kError };

// One thing that happened: "request" id=... status=200 ...
struct LogLine {
  LogLevel level = LogLevel::kInfo;
  std::string event;
  std::vector<std::pair<std::string, std::string>> fields;  // in order; values may be any text
};

// Called from any thread of the server, several at once.
using LogSink = std::function<void(const LogLine& line)>;

// "event key=value key=\"a value\"": values that hold more than printable ASCII without spaces, quotes and '=' are
// quoted and escaped as in JSON, so that a line stays one line.
std::string FormatLogLine(const LogLine& line);

// {"time": .., "level": .., "event": .., KEY: VALUE, ...}: one JSON object on one line, every value a string, bytes that
// are no UTF-8 as U+FFFD. time: as the log writes it.
std::string FormatJsonLogLine(const std::string& time, const LogLine& line);

}  // namespace stoch::serve
