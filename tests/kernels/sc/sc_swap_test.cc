// SPDX-License-Identifier: Apache-2.0
// Counts with side a as the thermometer against the counts themselves.
#include <gtest/gtest.h>

#include "kernels/sc/swap.h"
#include "tests/kernels/sc/ones.h"

namespace stoch {
namespace {

class ScSwap : public testing::TestWithParam<int> {};

TEST_P(ScSwap, EveryCount) {
  ScConfig config;
  config.halve = true;
  config.stoc_len = GetParam();
  const ScOperatorPtr op = MakeScOperator(config);
  ASSERT_TRUE(CanSwap(*op));
  const auto words = static_cast<size_t>(op->stream_words);
  const std::vector<uint64_t> swapped = SwapStreams(*op);
  ASSERT_EQ(swapped.size(), op->streams_a.size());
  for (int mask = 0; mask < op->masks; ++mask) {
    for (int a = 0; a < op->levels; ++a) {
      const auto row = static_cast<size_t>(mask) * static_cast<size_t>(op->levels);
      const int rank = test::Ones(&op->streams_a[(row + static_cast<size_t>(a)) * words], op->config.stoc_len);
      for (int b = 0; b < op->levels; ++b) {
        ASSERT_EQ(test::Ones(&swapped[(row + static_cast<size_t>(b)) * words], rank), op->count(mask, a, b))
            << mask << " " << a << " " << b;
      }
    }
  }
}

// A side whose streams have other numbers of ones stays where it is.
TEST(ScSwapSides, NotEveryOperator) {
  ScConfig config;
  EXPECT_FALSE(CanSwap(*MakeScOperator(config)));
  config.stoc_len = 128;
  EXPECT_FALSE(CanSwap(*MakeScOperator(config)));
}

// Every count of a shorter operator by the streams of the longest, and who has no such ranks.
TEST(ScSwapRanks, EveryCountOfShorterStreams) {
  ScConfig config;
  config.halve = true;
  config.stoc_len = 128;
  const ScOperatorPtr longer = MakeScOperator(config);
  const std::vector<uint64_t> swapped = SwapStreams(*longer);
  const auto words = static_cast<size_t>(longer->stream_words);
  for (const int length : {1, 7, 24, 64, 90, 96, 127, 128}) {
    config.stoc_len = length;
    const ScOperatorPtr shorter = MakeScOperator(config);
    const auto ranks = SwappedRanks(*shorter, *longer);
    ASSERT_TRUE(ranks.has_value()) << length;
    for (int mask = 0; mask < longer->masks; ++mask) {
      const auto row = static_cast<size_t>(mask) * static_cast<size_t>(longer->levels);
      for (int a = 0; a < longer->levels; ++a) {
        const int rank = (*ranks)[row + static_cast<size_t>(a)];
        ASSERT_LE(rank, length);
        for (int b = 0; b < longer->levels; ++b) {
          ASSERT_EQ(test::Ones(&swapped[(row + static_cast<size_t>(b)) * words], rank),
                    shorter->count(mask & (shorter->masks - 1), a, b))
              << length << " " << mask << " " << a << " " << b;
        }
      }
    }
  }
}

TEST(ScSwapRanks, NotOfEveryOperator) {
  ScConfig config;
  config.halve = true;
  config.stoc_len = 64;
  const ScOperatorPtr half = MakeScOperator(config);
  config.stoc_len = 128;
  const ScOperatorPtr whole = MakeScOperator(config);
  EXPECT_FALSE(SwappedRanks(*whole, *half).has_value());
  // Free-running streams: a shorter one is the longer one's bits of its own cycles, which lie apart.
  config.gate = ScGate::kAnd;
  const ScOperatorPtr whole_and = MakeScOperator(config);
  config.stoc_len = 64;
  EXPECT_FALSE(SwappedRanks(*MakeScOperator(config), *whole_and).has_value());
  for (int time = 0; time < 2; ++time) {  // found out, and kept
    EXPECT_TRUE(CanSwapWithin(*half, *whole));
    EXPECT_FALSE(CanSwapWithin(*whole, *half));
    EXPECT_FALSE(CanSwapWithin(*half, *whole_and));
    EXPECT_FALSE(CanSwapWithin(*MakeScOperator(config), *whole_and));
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, ScSwap, testing::Values(0, 64, 128));

}  // namespace
}  // namespace stoch
