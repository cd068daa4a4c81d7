// SPDX-License-Identifier: Apache-2.0
// Options whose default means "none": an empty value, as of a variable of a shell that is not set, is not that.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace stoch::cli {

inline CLI::Validator NotEmpty() {
  return {[](std::string& text) { return std::string(text.empty() ? "expected a value, got an empty one" : ""); }, ""};
}

}  // namespace stoch::cli
