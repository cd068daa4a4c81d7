// SPDX-License-Identifier: Apache-2.0
// Expectations on InvalidInput.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "kernels/base/error.h"

namespace stoch::test {

// The message of the InvalidInput that `body` throws; a failure of the test, and "", if it throws none.
inline std::string InvalidMessage(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidInput& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected InvalidInput, got success";
  return "";
}

// `body` throws InvalidInput whose message is one line that has every one of `parts` in it.
inline void ExpectInvalid(const std::function<void()>& body, std::initializer_list<std::string_view> parts) {
  const std::string message = InvalidMessage(body);
  for (const std::string_view part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

}  // namespace stoch::test
