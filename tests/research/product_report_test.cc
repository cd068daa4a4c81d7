// SPDX-License-Identifier: Apache-2.0
#include "research/products/product_report.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/sc/number_source.h"
#include "kernels/sc/sc_parameters.h"

namespace stoch {
namespace {

ScOperatorPtr Make(const std::vector<std::pair<std::string, std::string>>& parameters) {
  ScConfig config;
  for (const auto& [name, value] : parameters) SetScParameter(config, name, value);
  return MakeScOperator(config);
}

// Bit by bit, in long double.
void ExpectLiteral(const ScOperator& op) {
  const ProductReport report = ReportProduct(op);
  const int length = op.config.stoc_len;
  const bool offset = op.code == ScCode::kOffset;
  const int low = offset ? -op.q_max : 0;
  const std::vector<int> bounds = LevelBoundaries(op.levels, op.q_max - low, op.config.rng_levels);
  std::vector<long double> by_cycle(static_cast<size_t>(length), 0);
  long double sum = 0, sum_abs = 0, squares = 0, most = 0;
  int64_t n = 0;
  for (int mask = 0; mask < op.masks; ++mask) {
    const std::vector<int> a = ComparatorValues(op.config, ScSide::kA, mask);
    const std::vector<int> b = ComparatorValues(op.config, ScSide::kB, mask);
    for (int x = low; x <= op.q_max; ++x) {
      for (int y = low; y <= op.q_max; ++y) {
        const long double product = static_cast<long double>(x) * y / (op.q_max * op.q_max);
        int count = 0, enabled = 0;
        for (int t = 0; t < length; ++t) {
          const bool on_a = a[static_cast<size_t>(t)] < bounds[static_cast<size_t>(x - low)];
          const size_t at = static_cast<size_t>(op.config.gate == ScGate::kEnabled ? enabled : t);
          const bool on_b = b[at] < bounds[static_cast<size_t>(y - low)];
          if (offset) {
            count += on_a == on_b ? 1 : -1;
          } else if (on_a) {
            count += on_b ? 1 : 0;
            ++enabled;
          }
          by_cycle[static_cast<size_t>(t)] += std::abs(static_cast<long double>(count) / (t + 1) - product);
        }
        const long double error = count - length * product;
        sum += error;
        sum_abs += std::abs(error);
        squares += error * error;
        most = std::max(most, std::abs(error));
        ++n;
      }
    }
  }
  constexpr double kNear = 1e-12;
  const auto near = [](double got, long double expected) {
    EXPECT_NEAR(got, static_cast<double>(expected), kNear * (1 + std::abs(static_cast<double>(expected))));
  };
  near(report.errors.mae, sum_abs / n);
  near(report.errors.bias, sum / n);
  near(report.errors.rmse, std::sqrt(squares / n));
  near(report.errors.max, most);
  ASSERT_TRUE(report.progress);
  for (size_t t = 0; t < by_cycle.size(); ++t) near(report.progress->mae_of_cycles[t], by_cycle[t] / n);
}

TEST(ProductReport, IsThatOfLiteralStreams) {
  ExpectLiteral(*Make({{"sc_prec", "4"}}));
  ExpectLiteral(*Make({{"sc_prec", "5"}, {"halve", "1"}, {"stoc_len", "11"}, {"scramble_masks", "4"}}));
  ExpectLiteral(*Make({{"sc_prec", "4"}, {"gate", "and"}, {"stoc_len", "13"}}));
  ExpectLiteral(*Make({{"sc_prec", "4"}, {"gate", "xnor"}, {"stoc_len", "13"}, {"scramble_masks", "2"}}));
  ExpectLiteral(*Make({{"sc_prec", "4"}, {"mode", "unipolar"}, {"source", "lfsr"}, {"stoc_len", "9"}}));
}

// docs/sc_arithmetic.md, section 4: each gate has a source that goes with it.
TEST(ProductReport, DefaultSourcesMultiply) {
  const ProductReport enabled = ReportProduct(*Make({{"halve", "1"}}));
  const ProductReport both = ReportProduct(*Make({{"halve", "1"}, {"gate", "and"}}));
  const ProductReport sobol = ReportProduct(*Make({{"halve", "1"}, {"gate", "and"}, {"source", "sobol"}}));
  EXPECT_NEAR(enabled.errors.mae, 0.48, 0.005);
  EXPECT_NEAR(both.errors.mae, 1.06, 0.005);
  EXPECT_NEAR(sobol.errors.mae, 8.30, 0.005);
  EXPECT_NEAR(sobol.errors.bias, 8.29, 0.005);
  EXPECT_NEAR(both.correlation->sides.mean, 0.02, 0.005);
  EXPECT_NEAR(sobol.correlation->sides.mean, 0.83, 0.005);
}

TEST(ProductReport, CyclesWithinABoundStayThere) {
  const ProductReport report = ReportProduct(*Make({{"halve", "1"}}));
  const std::vector<double>& mae = report.progress->mae_of_cycles;
  for (size_t i = 0; i < ProductProgress::kBounds.size(); ++i) {
    ASSERT_TRUE(report.progress->cycles_within[i]);
    const auto from = static_cast<size_t>(*report.progress->cycles_within[i]);
    for (size_t t = from; t <= mae.size(); ++t) EXPECT_LE(mae[t - 1], ProductProgress::kBounds[i]);
    EXPECT_GT(mae[from - 2], ProductProgress::kBounds[i]);
  }
  EXPECT_FALSE(ReportProduct(*Make({{"sc_prec", "3"}, {"stoc_len", "2"}})).progress->cycles_within[2]);
}

TEST(ProductReport, TheFirstOfEqualMasksIsTheWorst) {
  EXPECT_EQ(MeasureProduct(*Make({{"stoc_len", "64"}, {"scramble", "off"}})).worst_mask, 0);
  EXPECT_EQ(MeasureProduct(*Make({{"halve", "1"}})).worst_mask, 42);
}

}  // namespace
}  // namespace stoch
