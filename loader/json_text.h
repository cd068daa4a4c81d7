// SPDX-License-Identifier: Apache-2.0
// JSON as text. Names of files and folders are any bytes, and nlohmann's dump() throws at what is not UTF-8.
#pragma once

#include <string>

namespace stoch {

// One line, or with `indent` of 0 or more one for each value. What is not UTF-8 becomes U+FFFD.
template <typename Json>
std::string JsonText(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace stoch
