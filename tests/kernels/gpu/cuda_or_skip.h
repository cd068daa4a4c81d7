// SPDX-License-Identifier: Apache-2.0
// Tests of the CUDA backend skip, visibly, without a GPU; STOCH_REQUIRE_CUDA=1 turns the skip into a failure.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/base/error.h"
#include "kernels/registry.h"

namespace stoch::test {

// "" where cuda:0 opens, else why not.
inline std::string WhyNoCuda() {
  try {
    OpenBackend("cuda:0", {}, nullptr);
    return "";
  } catch (const InvalidInput& error) {
    return error.what();
  }
}

}  // namespace stoch::test

#define STOCH_CUDA_OR_SKIP()                                                 \
  do {                                                                       \
    static const std::string why = ::stoch::test::WhyNoCuda();               \
    if (!why.empty()) {                                                      \
      if (std::getenv("STOCH_REQUIRE_CUDA") != nullptr) GTEST_FAIL() << why; \
      GTEST_SKIP() << why;                                                   \
    }                                                                        \
  } while (false)
