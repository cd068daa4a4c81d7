// SPDX-License-Identifier: Apache-2.0
// The manual page, made from the command line's own description.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace stoch::cli {

// stoch(1) in roff (man macros): every command with its options and examples, and how variables are named.
std::string ManPage(const CLI::App& root);

}  // namespace stoch::cli
