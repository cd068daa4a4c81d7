// SPDX-License-Identifier: Apache-2.0
#include "app/options/max_memory.h"

#include <gtest/gtest.h>

#include "tests/support/expect_invalid.h"

namespace stoch::cli {
namespace {

using test::ExpectInvalid;

TEST(MaxMemory, Sizes) {
  EXPECT_EQ(ParseMaxMemory(""), (std::map<int, int64_t>{}));
  EXPECT_EQ(ParseMaxMemory("0=60GiB,3=1.5MB"), (std::map<int, int64_t>{{0, int64_t{60} << 30}, {3, 1500000}}));
  for (const char* bad : {"60GiB", "0=", "0=60Gib", "x=1", "0=1,0=2", "0=-1", "-1=3"}) {
    ExpectInvalid([bad] { ParseMaxMemory(bad); }, {"--max-memory", bad});
  }
}

}  // namespace
}  // namespace stoch::cli
