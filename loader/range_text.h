// SPDX-License-Identifier: Apache-2.0
// Ranges of whole numbers in messages and tables.
#pragma once

#include <cstdint>
#include <string>

namespace stoch {

// "2..5", both included; "2" where there is one; "none" where first is above last.
inline std::string RangeText(int64_t first, int64_t last) {
  if (first > last) return "none";
  return first == last ? std::to_string(first) : std::to_string(first) + ".." + std::to_string(last);
}

}  // namespace stoch
