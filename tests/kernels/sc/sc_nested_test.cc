// SPDX-License-Identifier: Apache-2.0
// Counts of short streams with the ranks of a long one, against the counts of the short one's own operator.
#include "kernels/sc/sc_nested.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/kernels/sc/ones.h"

namespace stoch {
namespace {

ScOperatorPtr Operator(ScConfig config, int stoc_len) {
  config.halve = true;
  config.chunk_d = 128;
  config.stoc_len = stoc_len;
  return MakeScOperator(config);
}

class ScNested : public testing::TestWithParam<ScGate> {};

TEST_P(ScNested, EveryCount) {
  ScConfig config;
  config.gate = GetParam();
  const ScOperatorPtr longer = Operator(config, 128);
  const auto words = static_cast<size_t>(longer->stream_words);
  for (const int length : {1, 7, 64, 96, 127, 128}) {
    const ScOperatorPtr shorter = Operator(config, length);
    const auto nested = NestStreams(*shorter, *longer);
    ASSERT_TRUE(nested.has_value()) << length;
    ASSERT_EQ(nested->size(), longer->streams_a.size());
    for (int mask = 0; mask < longer->masks; ++mask) {
      for (int a = 0; a < longer->levels; ++a) {
        const auto row = static_cast<size_t>(mask) * static_cast<size_t>(longer->levels);
        for (int b = 0; b < longer->levels; ++b) {
          const int rank = longer->ranks_b[row + static_cast<size_t>(b)];
          ASSERT_EQ(test::Ones(&(*nested)[(row + static_cast<size_t>(a)) * words], rank),
                    shorter->count(mask & (shorter->masks - 1), a, b))
              << length << " " << mask << " " << a << " " << b;
        }
      }
    }
    if (length == 128) {
      EXPECT_EQ(*nested, longer->streams_a);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gates, ScNested, testing::Values(ScGate::kEnabled, ScGate::kAnd));

// The full grid over the full length is not scrambled, shorter streams are; and a long one is in no short one.
TEST(ScNestedNot, OtherCycles) {
  ScConfig full;
  full.chunk_d = 128;
  full.stoc_len = 256;
  ScConfig half = full;
  half.stoc_len = 64;
  EXPECT_FALSE(NestStreams(*MakeScOperator(half), *MakeScOperator(full)).has_value());
  EXPECT_FALSE(NestStreams(*Operator({}, 128), *Operator({}, 64)).has_value());
}

TEST(ScNestedNot, AnswersAreKeptForBothOperators) {
  ScConfig config;
  config.chunk_d = 128;
  config.stoc_len = 256;
  const ScOperatorPtr full = MakeScOperator(config), longer = Operator({}, 128), shorter = Operator({}, 64);
  for (int time = 0; time < 2; ++time) {
    EXPECT_TRUE(StreamsNest(*shorter, *longer));
    EXPECT_FALSE(StreamsNest(*longer, *shorter));
    EXPECT_FALSE(StreamsNest(*shorter, *full));
    EXPECT_TRUE(StreamsNest(*longer, *longer));
  }
}

}  // namespace
}  // namespace stoch
