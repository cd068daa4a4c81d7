// SPDX-License-Identifier: Apache-2.0
// STOCH_CHECK: an always-on check of an invariant of our own code. Not for user input: that is InvalidInput.
#pragma once

#include <stdexcept>
#include <string>

namespace stoch {

[[noreturn]] inline void CheckFailed(const char* condition, const char* file, int line) {
  throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": check failed: " + condition);
}

}  // namespace stoch

#define STOCH_CHECK(condition)                              \
  do {                                                      \
    if (!(condition)) [[unlikely]]                          \
      ::stoch::CheckFailed(#condition, __FILE__, __LINE__); \
  } while (false)
