// SPDX-License-Identifier: Apache-2.0
// What a model is made of, so that two processes can tell whether they serve the same one.
#pragma once

#include <map>
#include <string>

namespace stoch::serve {

// Files by their path, and settings by name; the values differ where answers may.
using ModelParts = std::map<std::string, std::string>;

// The first part that is another one in `now`, or that `now` lacks; "" if there is none. may_add: `now` may have parts
// that `before` does not have, otherwise they count as changed.
inline std::string ChangedPart(const ModelParts& before, const ModelParts& now, bool may_add) {
  for (const auto& [name, value] : before) {
    const auto found = now.find(name);
    if (found == now.end() || found->second != value) return name;
  }
  if (may_add) return "";
  for (const auto& [name, value] : now) {
    if (!before.contains(name)) return name;
  }
  return "";
}

}  // namespace stoch::serve
