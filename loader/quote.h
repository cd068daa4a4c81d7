// SPDX-License-Identifier: Apache-2.0
// How names and text out of hostile files appear in messages.
#pragma once

#include <string>
#include <string_view>

namespace stoch {

// Text in double quotes, control and non-ASCII bytes as \xNN, cut after 80 bytes: safe to print, one line.
inline std::string Quoted(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  constexpr char kHex[] = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return result + (text.size() > kMaxBytes ? "...\"" : "\"");
}

}  // namespace stoch
