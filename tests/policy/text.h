// SPDX-License-Identifier: Apache-2.0
// Lines of a file as rules read them, and places as findings name them.
#pragma once

#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>

#include "tests/policy/rules.h"

namespace stoch::test {

inline bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Calls see(number, line) for every line, numbered from 1.
template <typename See>
void ForLines(const SourceFile& file, const See& see) {
  std::istringstream stream(file.text);
  size_t number = 0;
  for (std::string line; std::getline(stream, line);) see(++number, line);
}

// "path:line: sentence".
inline std::string At(const SourceFile& file, size_t line, const std::string& sentence) {
  return file.path + ":" + std::to_string(line) + ": " + sentence;
}

}  // namespace stoch::test
