// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/context_bytes.h"

#include <gtest/gtest.h>

namespace stoch {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(ContextBytes, IsTheDifferenceOfWhatIsTaken) {
  EXPECT_EQ(ContextBytes(0, 528 * kMiB), 528 * kMiB);
  EXPECT_EQ(ContextBytes(70000 * kMiB, 70150 * kMiB), 150 * kMiB);
}

// Seen on an H200: a server that ends gave 11 GB back while the plan of the next one was made, and the plan had no
// context.
TEST(ContextBytes, IsNotWhatOthersTakeOrGiveBack) {
  const int64_t usual = ContextBytes(std::nullopt, std::nullopt);
  EXPECT_GT(usual, 256 * kMiB);
  EXPECT_EQ(ContextBytes(11239 * kMiB, 528 * kMiB), usual);
  EXPECT_EQ(ContextBytes(0, 0), usual);
  EXPECT_EQ(ContextBytes(100 * kMiB, 9000 * kMiB), usual);
  EXPECT_EQ(ContextBytes(100 * kMiB, std::nullopt), usual);
}

}  // namespace
}  // namespace stoch
