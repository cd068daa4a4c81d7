// SPDX-License-Identifier: Apache-2.0
// The limits on JSON of hostile files.

#include "loader/bounded_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

namespace stoch::test {
namespace {

std::string Refusal(const std::string& text, int64_t max_values) {
  try {
    ParseBoundedJson(text, "x.json", 8, max_values);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

TEST(BoundedJson, CountsValues) {
  EXPECT_EQ(Refusal("[1,[],{\"a\":[2]},null]", 7), "");
  EXPECT_EQ(Refusal("[1,[],{\"a\":[2]},null]", 6), "x.json: expected JSON of at most 6 values, got more");
  // Two bytes each in the text, some fifty in memory.
  std::string bomb = "[";
  for (int i = 0; i < 100000; ++i) bomb += "[],";
  EXPECT_EQ(Refusal(bomb, 1000), "x.json: expected JSON of at most 1000 values, got more");
  EXPECT_EQ(Refusal("1", 1), "");
}

}  // namespace
}  // namespace stoch::test
