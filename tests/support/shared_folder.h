// SPDX-License-Identifier: Apache-2.0
// Reference data that is not part of the project: recorded goldens, real tiny models, tokenizers, texts.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

namespace stoch::test {

// The folder named by the environment variable STOCH_SHARED, else "shared" next to the checkout, else nothing.
// Errors: std::runtime_error where STOCH_SHARED names no folder: a typing error must not turn tests into skips.
std::optional<std::filesystem::path> FindSharedFolder();

// The same for code after STOCH_REQUIRE_SHARED; throws where there is none.
std::filesystem::path SharedFolder();

}  // namespace stoch::test

// First line of a test (or SetUp) that reads reference data: skips, visibly, where there is none.
#define STOCH_REQUIRE_SHARED()                                                                  \
  do {                                                                                          \
    if (!::stoch::test::FindSharedFolder()) GTEST_SKIP() << "no reference data (STOCH_SHARED)"; \
  } while (false)
