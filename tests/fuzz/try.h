// SPDX-License-Identifier: Apache-2.0
// What a fuzz target holds its parser to: one sentence for what it refuses, and claims about what it takes.
#pragma once

#include <cstdlib>
#include <cstring>
#include <functional>

#include "kernels/base/error.h"

namespace stoch::test {

inline void Check(bool condition) {
  if (!condition) std::abort();
}

inline void Try(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidInput& error) {
    Check(std::strchr(error.what(), '\n') == nullptr);
  }
}

}  // namespace stoch::test
