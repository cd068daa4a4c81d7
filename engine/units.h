// SPDX-License-Identifier: Apache-2.0
// Numbers for people.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace stoch {

// "1.24 GB", "512 B"; powers of 1000.
inline std::string Bytes(int64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* next : {"kB", "MB", "GB", "TB"}) {
    if (value < 1000) break;
    value /= 1000;
    unit = next;
  }
  return fmt::format("{:.4g} {}", value, unit);
}

// "1.24 G" of anything.
inline std::string Count(int64_t count) {
  std::string text = Bytes(count);
  text.pop_back();
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace stoch
