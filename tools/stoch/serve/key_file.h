// SPDX-License-Identifier: Apache-2.0
// The keys of a file.
#pragma once

#include <string>
#include <vector>

namespace stoch::cli {

struct KeyFile {
  std::vector<std::string> keys;    // at least one
  bool readable_by_others = false;  // than its owner
};

// One key a line; empty lines and those that begin with # count for nothing, nor do spaces around a key.
// Errors: InvalidInput naming file and line, and never a key: it cannot be read, has no key, or one that no header can say.
KeyFile ReadKeyFile(const std::string& file);

}  // namespace stoch::cli
