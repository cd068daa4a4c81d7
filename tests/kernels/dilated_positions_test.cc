// SPDX-License-Identifier: Apache-2.0
// The positions that dilated attention admits: lists, counts and the question of one pair agree.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "kernels/dilated.h"
#include "tests/kernels/dilated_pairs.h"

namespace stoch {
namespace {

using test::PairsText;
using test::Pick;
using test::RandomPairs;

TEST(Admitted, IsWhatTimesAdmittedSays) {
  std::mt19937 random(5);
  for (int i = 0; i < 400; ++i) {
    const std::vector<DilatedPair> pairs = RandomPairs(random);
    const int64_t head = Pick(random, 0, 20), position = Pick(random, 0, 300), first = Pick(random, 0, 300);
    const AdmittedPositions admitted = Admitted(pairs, head, position, first);
    size_t at = 0;
    for (int64_t t = first; t <= position + 20; ++t) {
      const int times = TimesAdmitted(pairs, head, position, t);
      if (times == 0) continue;
      ASSERT_LT(at, admitted.positions.size());
      EXPECT_EQ(admitted.positions[at], t);
      EXPECT_EQ(admitted.times[at], times);
      ++at;
    }
    EXPECT_EQ(at, admitted.positions.size());
    std::set<int32_t> by_any;
    const int64_t last = position + Pick(random, 0, 60);
    for (int64_t n = position; n <= last; ++n) {
      const AdmittedPositions own = Admitted(pairs, head, n, first);
      by_any.insert(own.positions.begin(), own.positions.end());
    }
    EXPECT_EQ(CountAdmitted(pairs, head, position, last, first), static_cast<int64_t>(by_any.size()))
        << PairsText(pairs);
    EXPECT_EQ(CountAdmitted(pairs, head, position, position, first), admitted.size()) << PairsText(pairs);
  }
}

TEST(Admitted, RowsOfASegmentAdmitPrefixesOfTheLast) {
  std::mt19937 random(6);
  for (int i = 0; i < 200; ++i) {
    const std::vector<DilatedPair> pairs = RandomPairs(random);
    const int64_t head = Pick(random, 0, 20), position = Pick(random, 0, 300);
    const int64_t last = std::min(NextSegment(pairs, position) - 1, position + 40);
    const AdmittedPositions all = Admitted(pairs, head, last, 0);
    AdmittedPositions own = Admitted(pairs, head, position, 0);
    ASSERT_EQ(own.size(), all.Below(position + 1));
    for (size_t j = 0; j < own.positions.size(); ++j) {
      EXPECT_EQ(own.positions[j], all.positions[j]);
      EXPECT_EQ(own.times[j], all.times[j]);
    }
  }
}

TEST(Admitted, TheExampleOfTheSpecification) {
  const std::vector<DilatedPair> pairs = {{2048, 1}, {8192, 4}};
  // Position 9000 is in segments [8192, 10240) and [8192, 16384); 2047 begins none.
  EXPECT_EQ(TimesAdmitted(pairs, 1, 9000, 8193), 2);
  EXPECT_EQ(TimesAdmitted(pairs, 1, 9000, 8194), 1);
  EXPECT_EQ(TimesAdmitted(pairs, 1, 9000, 8191), 0);
  EXPECT_EQ(TimesAdmitted(pairs, 1, 9000, 9001), 0);
  EXPECT_EQ(TimesAdmitted(pairs, 6, 5000, 2), 1);
  EXPECT_EQ(TimesAdmitted(pairs, 6, 5000, 3), 0);
  EXPECT_EQ(CountAdmitted(pairs, 0, 16383, 16383), 2048 + 6144 / 4);
}

}  // namespace
}  // namespace stoch
