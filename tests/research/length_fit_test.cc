// SPDX-License-Identifier: Apache-2.0
// Thresholds under a budget of cycles, and what they are made of.
#include "research/calibrate/length_fit.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/support/expect_invalid.h"

namespace stoch::test {
namespace {

constexpr std::array<int, 3> kLevels = {32, 64, 128};

// Errors that fall with the length and rise with the metric, whose fraction decides.
LengthBucket Bucket(const std::string& op, int count, double macs, bool by_chunk = false) {
  LengthBucket bucket{op, 0, by_chunk, 1, {}};
  for (int i = 0; i < count; ++i) {
    const double metric = static_cast<double>(i * 37 % count) / count;
    bucket.samples.metrics.push_back(static_cast<float>(metric));
    bucket.samples.stands_for.push_back(128);
    bucket.samples.macs.push_back(macs);
    for (const int level : kLevels) bucket.samples.errors.push_back(metric / level);
  }
  return bucket;
}

TEST(LengthFit, BudgetHoldsAndLengthsRiseWithTheMetric) {
  for (const bool by_chunk : {false, true}) {
    const std::vector<LengthBucket> buckets = {Bucket("q_proj", 200, 4096, by_chunk), Bucket("av", 5000, 64)};
    for (const double budget : {0.25, 0.3, 0.6, 0.9}) {
      const FittedLengths fitted = FitLengths(buckets, kLevels, budget, 128);
      EXPECT_LE(fitted.mac_average, budget * 128) << budget;
      EXPECT_GT(fitted.mac_average, budget * 128 - 3) << budget;
      EXPECT_GE(fitted.fidelity.at("q_proj"), 0.999);
      const auto& thresholds = fitted.buckets[0].thresholds;
      ASSERT_EQ(thresholds.size(), 2u);
      // Chunks: ascending with rungs from the shortest. Rows: descending with levels from the longest.
      EXPECT_EQ(thresholds[0] <= thresholds[1], by_chunk || thresholds[0] == thresholds[1]) << budget;
      EXPECT_EQ(fitted.buckets[0].levels.empty(), !by_chunk);
    }
    const FittedLengths all = FitLengths(buckets, kLevels, 1, 128);
    EXPECT_GT(all.mac_average, 127);
    ExpectInvalid([&] { FitLengths(buckets, kLevels, 0.05, 128); }, {"budget 0.05: the shortest levels need 0.25"});
    EXPECT_NEAR(FitLengths(buckets, kLevels, 0.5, 64).mac_average, 32, 1e-9);
  }
}

TEST(LengthFit, WeightsMoveCycles) {
  std::vector<LengthBucket> buckets = {Bucket("q_proj", 300, 1024), Bucket("k_proj", 300, 1024)};
  const FittedLengths even = FitLengths(buckets, kLevels, 0.5, 128);
  EXPECT_EQ(even.buckets[0].thresholds, even.buckets[1].thresholds);
  buckets[1].weight = 100;
  const FittedLengths weighted = FitLengths(buckets, kLevels, 0.5, 128);
  EXPECT_GT(weighted.buckets[0].thresholds[0], weighted.buckets[1].thresholds[0]);
}

TEST(LengthFit, EqualMetricsAreNotParted) {
  LengthBucket bucket = Bucket("av", 64, 16);
  for (float& metric : bucket.samples.metrics) metric = 1;
  for (const double budget : {0.3, 0.6, 0.99}) {
    const FittedLengths fitted = FitLengths({&bucket, 1}, kLevels, budget, 128);
    EXPECT_LE(fitted.mac_average, budget * 128);
    EXPECT_EQ(*fitted.buckets[0].metric_lo, 1 - 1.0 / 16);
    EXPECT_EQ(*fitted.buckets[0].metric_hi, 1 + 1.0 / 16);
  }
  EXPECT_EQ(FitLengths({&bucket, 1}, kLevels, 0.5, 128).fidelity.at("av"), std::nullopt);
}

TEST(LengthFit, RankCorrelationHasMeanRanks) {
  using V = std::vector<double>;
  EXPECT_EQ(RankCorrelation(V{1, 2, 3, 4}, V{10, 20, 30, 400}), 1.0);
  EXPECT_EQ(RankCorrelation(V{1, 2, 3, 4}, V{4, 3, 2, 1}), -1.0);
  EXPECT_EQ(RankCorrelation(V{1, 1}, V{1, 2}), std::nullopt);
  // Ranks 0.5 0.5 2 3 and 0 1 2 3: 4.5 / sqrt(4.5 * 5).
  EXPECT_NEAR(*RankCorrelation(V{7, 7, 8, 9}, V{1, 2, 3, 4}), 0.9486832980505138, 1e-15);
}

}  // namespace
}  // namespace stoch::test
