// SPDX-License-Identifier: Apache-2.0
#include "app/command.h"

namespace stoch::cli {

std::string OneLine(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n')) text.replace(at, 1, "; ");
  // Names out of files are in messages: what a terminal would obey is shown, not sent.
  for (size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte >= 0x20 && byte != 0x7f) continue;
    constexpr char kHex[] = "0123456789abcdef";
    text.replace(at, 1, {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]});
    at += 3;
  }
  constexpr size_t kLongest = 2000, kKept = 200;  // bytes
  if (text.size() > kLongest) {
    const auto is_inside = [&](size_t at) { return (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80; };
    size_t begin = kKept, end = text.size() - kKept;
    while (begin > 0 && is_inside(begin)) --begin;
    while (end < text.size() && is_inside(end)) ++end;
    text.replace(begin, end - begin, " ... ");
  }
  return text;
}

}  // namespace stoch::cli
