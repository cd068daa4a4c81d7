// SPDX-License-Identifier: Apache-2.0
#include "engine/logits_hash.h"

#include <gtest/gtest.h>

#include <vector>

namespace stoch {
namespace {

// Vectors from `printf '...' | sha256sum`.
TEST(LogitsHash, IsSha256OverLittleEndianFloats) {
  LogitsHash hash;
  EXPECT_EQ(hash.Hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  hash.Add(std::vector<float>{1.0f, -2.0f});  // 00 00 80 3f  00 00 00 c0
  const std::string one_row = hash.Hex();
  EXPECT_EQ(one_row, "ee4ac73c2bd27756ab82780f27c73a7bc4d3f0bb6acb37e008bc27eccd7e588b");
  EXPECT_EQ(hash.Hex(), one_row);  // asking does not end it
  LogitsHash two_adds;
  two_adds.Add(std::vector<float>{1.0f});
  two_adds.Add(std::vector<float>{-2.0f});
  EXPECT_EQ(two_adds.Hex(), one_row);
  hash.Add(std::vector<float>{0.0f});
  EXPECT_NE(hash.Hex(), one_row);
}

}  // namespace
}  // namespace stoch
