// SPDX-License-Identifier: Apache-2.0
// Classes of characters of RFC 9110. Internal to the HTTP front.
#pragma once

#include <string_view>

namespace stoch::serve {

inline bool IsBlank(char c) { return c == ' ' || c == '\t'; }

// Not allowed in the value of a field, where a tab is.
inline bool IsControl(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }

inline bool IsAlphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Of methods and names of fields.
inline bool IsTokenCharacter(char c) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return IsAlphanumeric(c) || kOthers.find(c) != std::string_view::npos;
}

// Of host and port in Host: names, IPv4 and IPv6 addresses.
inline bool IsHostCharacter(char c) {
  constexpr std::string_view kOthers = "-._~%!$&'()*+;=:[]";
  return IsAlphanumeric(c) || kOthers.find(c) != std::string_view::npos;
}

}  // namespace stoch::serve
