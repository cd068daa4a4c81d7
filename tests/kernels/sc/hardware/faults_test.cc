// SPDX-License-Identifier: Apache-2.0
// Faults against every pattern of flipped bits, as rationals, and against literal bits; words and registers.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <map>

#include "kernels/math/random.h"
#include "kernels/sc/hardware/accumulator.h"
#include "kernels/sc/hardware/words.h"
#include "tests/kernels/sc/hardware/literal.h"

namespace stoch {
namespace {

using test::Settings;

constexpr double kMostZ = 4;

// (chi square - degrees) / sqrt(2 degrees) of counts of draws against probabilities; rare outcomes are one.
double ZOf(const std::map<int64_t, int64_t>& counts, const std::map<int64_t, double>& probabilities, int64_t draws) {
  constexpr double kLeastExpected = 8;
  double chi = 0, rare_expected = 0, seen = 0;
  int64_t rare = draws, degrees = 0;
  for (const auto& [value, probability] : probabilities) {
    const double expected = probability * static_cast<double>(draws);
    if (expected < kLeastExpected) {
      rare_expected += expected;
      continue;
    }
    const auto found = counts.find(value);
    const int64_t count = found == counts.end() ? 0 : found->second;
    rare -= count;
    seen += probability;
    chi += (static_cast<double>(count) - expected) * (static_cast<double>(count) - expected) / expected;
    ++degrees;
  }
  if (rare_expected >= 1) {
    chi += (static_cast<double>(rare) - rare_expected) * (static_cast<double>(rare) - rare_expected) / rare_expected;
    ++degrees;
  } else if (static_cast<double>(rare) > rare_expected + 6) {
    return INFINITY;
  }
  if (degrees < 2) return seen > 0.999 ? 0 : INFINITY;
  return (chi - static_cast<double>(degrees - 1)) / std::sqrt(2.0 * static_cast<double>(degrees - 1));
}

// ------------------------------------------------------------------------------------------------ numbers ----

uint64_t Choose(int n, int k) {
  uint64_t result = 1;
  for (int i = 1; i <= k; ++i) result = result * static_cast<uint64_t>(n - k + i) / static_cast<uint64_t>(i);
  return result;
}

TEST(Binomial, TailsAreThoseOfRationalRates) {
  for (const auto& [p, q] : {std::pair(1, 4), std::pair(3, 4), std::pair(1, 8), std::pair(7, 8)}) {
    for (int n = 1; n <= 12; ++n) {
      const BinomialLine line = MakeBinomialLine(n, static_cast<double>(p) / q);
      ASSERT_EQ(line.first, 0);
      ASSERT_EQ(line.entries.size(), static_cast<size_t>(n));
      uint64_t tail = 0;  // of more than k flips, times q^n
      for (int k = n; k-- > 0;) {
        uint64_t weight = Choose(n, k + 1);
        for (int i = 0; i < k + 1; ++i) weight *= static_cast<uint64_t>(p);
        for (int i = k + 1; i < n; ++i) weight *= static_cast<uint64_t>(q - p);
        tail += weight;
        const double exact = static_cast<double>(tail) / std::pow(q, n);
        EXPECT_NEAR(static_cast<double>(line.entries[static_cast<size_t>(k)]) * 0x1p-64, exact, 0x1p-50)
            << n << ' ' << k;
      }
    }
  }
}

TEST(Binomial, ALineIsReadByInversion) {
  const BinomialLine line = MakeBinomialLine(3, 0.5);  // tails 7/8, 1/2, 1/8
  EXPECT_EQ(line.Flips(0), 3);
  EXPECT_EQ(line.Flips((uint64_t{1} << 61) - 1), 3);
  EXPECT_EQ(line.Flips(uint64_t{1} << 61), 2);
  EXPECT_EQ(line.Flips(uint64_t{1} << 63), 1);
  EXPECT_EQ(line.Flips(~uint64_t{0}), 0);
  EXPECT_EQ(MakeBinomialLine(9, 1.0).Flips(~uint64_t{0}), 9);
}

TEST(Binomial, DigitsOfANumberAddUp) {
  constexpr int64_t kN = 3 * 65536 + 200;
  constexpr double kRate = 0.01;
  const BinomialTablePtr table = MakeBinomialTable(kRate, kN);
  constexpr int kDraws = 20000;
  double sum = 0, squares = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double x = static_cast<double>(table->Flips(kN, 77, 0, i)) - kN * kRate;
    sum += x;
    squares += x * x;
  }
  const double variance = kN * kRate * (1 - kRate);
  EXPECT_LT(std::abs(sum / kDraws) / std::sqrt(variance / kDraws), kMostZ);
  EXPECT_LT(std::abs(squares / kDraws / variance - 1) * std::sqrt(kDraws / 2.0), kMostZ);
  EXPECT_EQ(table->Flips(0, 77, 0, 1), 0);
}

// ----------------------------------------------------------------------------------------------- products ----

struct Case {
  Settings settings;
  std::vector<int> a, b;
};

// The accumulator of output bits, which are `flipped` by bit d * L + t.
int64_t Sum(const ScOperator& op, const std::vector<test::LiteralProduct>& products, uint64_t flipped) {
  const bool xnor = op.config.gate == ScGate::kXnor;
  int64_t acc = 0;
  for (const test::LiteralProduct& product : products) {
    for (const bool bit : product.bits) {
      const bool on = bit != ((flipped & 1) != 0);
      flipped >>= 1;
      acc += xnor ? (on ? 1 : -1) : (on ? product.sign : 0);
    }
  }
  return acc;
}

std::vector<test::LiteralProduct> ProductsOf(const ScOperator& op, const Case& c) {
  std::vector<test::LiteralProduct> products;
  for (size_t d = 0; d < c.a.size(); ++d) products.push_back(test::Literal(op, static_cast<int>(d), c.a[d], c.b[d]));
  return products;
}

class ProductFaults : public testing::TestWithParam<Case> {};

TEST_P(ProductFaults, AreThoseOfEveryPatternOfBits) {
  Settings settings = GetParam().settings;
  settings.emplace_back("fault_product", "0.25");
  const ScOperatorPtr op = test::OperatorOf(settings);
  const std::vector<test::LiteralProduct> products = ProductsOf(*op, GetParam());
  const int bits = static_cast<int>(products.size()) * op->config.stoc_len;
  ASSERT_LE(bits, 12);
  std::map<int64_t, uint64_t> weights;  // of 4^bits
  for (uint64_t pattern = 0; pattern < uint64_t{1} << bits; ++pattern) {
    uint64_t weight = 1;
    for (int i = std::popcount(pattern); i < bits; ++i) weight *= 3;
    weights[Sum(*op, products, pattern)] += weight;
  }
  std::map<int64_t, double> exact;
  for (const auto& [value, weight] : weights) exact[value] = static_cast<double>(weight) / std::pow(4, bits);

  const auto dims = static_cast<int64_t>(products.size());
  const ScAccumulator accumulator(*op, dims);
  const ScLevelRange range{GetParam().a.data(), GetParam().b.data(), 0, 0, dims};
  std::map<int64_t, int64_t> counts;
  constexpr int64_t kDraws = 40000;
  for (int64_t i = 0; i < kDraws; ++i) {
    const ScAccumulator::Row row = accumulator.KeysOf({.layer = 3, .op = 1}, static_cast<uint64_t>(i));
    ++counts[AccumulateLevels(*op, accumulator, range, row, 7)];
  }
  EXPECT_LT(ZOf(counts, exact, kDraws), kMostZ);
}

TEST_P(ProductFaults, OfRateOneFlipEveryBit) {
  Settings settings = GetParam().settings;
  settings.emplace_back("fault_product", "1");
  const ScOperatorPtr op = test::OperatorOf(settings);
  const auto dims = static_cast<int64_t>(GetParam().a.size());
  const ScAccumulator accumulator(*op, dims);
  const ScLevelRange range{GetParam().a.data(), GetParam().b.data(), 0, 0, dims};
  EXPECT_EQ(AccumulateLevels(*op, accumulator, range, accumulator.KeysOf({}, 5), 0),
            Sum(*op, ProductsOf(*op, GetParam()), ~uint64_t{0}));
}

INSTANTIATE_TEST_SUITE_P(
    Gates, ProductFaults,
    testing::Values(Case{{{"sc_prec", "3"}, {"halve", "1"}}, {3, -2, 1}, {-2, -3, 0}},
                    Case{{{"sc_prec", "3"}, {"gate", "and"}, {"halve", "1"}}, {1, -2, 3}, {3, 2, 2}},
                    Case{{{"sc_prec", "3"}, {"gate", "and"}, {"stoc_len", "6"}}, {-3, 2}, {3, 1}},
                    Case{{{"sc_prec", "3"}, {"gate", "xnor"}, {"stoc_len", "4"}}, {-3, 0, 2}, {1, -1, 3}},
                    Case{{{"sc_prec", "3"}, {"mode", "unipolar"}, {"stoc_len", "6"}}, {7, 3}, {2, 5}},
                    Case{{{"sc_prec", "3"}, {"halve", "1"}}, {-2}, {3}}));

// Sums of flipped literal bits, and of draws, are samples of one distribution.
TEST(ProductFaults, AreThoseOfLiteralBits) {
  constexpr int kDims = 10, kDraws = 4000;
  for (const char* rate : {"0.001", "0.01", "0.1"}) {
    const ScOperatorPtr op = test::OperatorOf({{"halve", "1"}, {"fault_product", rate}});
    std::vector<int> a, b;
    for (uint64_t d = 0; d < kDims; ++d) {
      a.push_back(static_cast<int>(RandomBits(1, 0, d) % 255) - 127);
      b.push_back(static_cast<int>(RandomBits(1, 1, d) % 255) - 127);
    }
    const std::vector<test::LiteralProduct> products = ProductsOf(*op, {{}, a, b});
    const ScAccumulator accumulator(*op, kDims);
    const ScLevelRange range{a.data(), b.data(), 0, 0, kDims};
    std::map<int64_t, std::pair<int64_t, int64_t>> counts;  // literal, drawn
    uint64_t position = 0;
    for (uint64_t i = 0; i < kDraws; ++i) {
      int64_t acc = 0;
      for (const test::LiteralProduct& product : products) {
        for (const bool bit : product.bits) {
          const bool flips = static_cast<double>(RandomBits(2, 0, position++)) * 0x1p-64 < op->config.fault_product;
          acc += bit != flips ? product.sign : 0;
        }
      }
      ++counts[acc].first;
      ++counts[AccumulateLevels(*op, accumulator, range, accumulator.KeysOf({}, i), 3)].second;
    }
    double chi = 0;
    int64_t degrees = -1, rest_a = 0, rest_b = 0;
    const auto add = [&](int64_t x, int64_t y) {
      chi += static_cast<double>((x - y) * (x - y)) / static_cast<double>(x + y);
      ++degrees;
    };
    for (const auto& [value, both] : counts) {
      rest_a += both.first;
      rest_b += both.second;
      if (rest_a + rest_b < 20) continue;
      add(rest_a, rest_b);
      rest_a = rest_b = 0;
    }
    ASSERT_GT(degrees, 1) << rate;
    EXPECT_LT((chi - static_cast<double>(degrees)) / std::sqrt(2.0 * static_cast<double>(degrees)), kMostZ) << rate;
  }
}

TEST(ProductFaults, OfRateZeroDrawNothing) {
  const ScOperatorPtr op = test::OperatorOf({{"halve", "1"}, {"acc_bits", "32"}});
  const ScAccumulator accumulator(*op, 4);
  EXPECT_FALSE(accumulator.wants_negatives());
  EXPECT_EQ(accumulator.Finish(-12345, 0, 4, 128, {}, 0), -12345);
}

// -------------------------------------------------------------------------------------------------- words ----

TEST(Words, FlipSubsetsOfTheirBitsAlike) {
  constexpr int kBits = 4;
  constexpr double kRate = 0.3;
  const BinomialLine line = MakeBinomialLine(kBits, kRate);
  std::map<int64_t, double> exact;
  for (unsigned mask = 0; mask < 1u << kBits; ++mask) {
    const int flips = std::popcount(mask);
    exact[mask] = std::pow(kRate, flips) * std::pow(1 - kRate, kBits - flips);
  }
  std::map<int64_t, int64_t> counts;
  constexpr int64_t kDraws = 50000;
  for (int64_t i = 0; i < kDraws; ++i) ++counts[FlippedBits(line.view(), kBits, 31, static_cast<uint64_t>(i))];
  EXPECT_LT(ZOf(counts, exact, kDraws), kMostZ);
}

// Every bit flips.
int Inverted(const Settings& settings, int level) {
  const ScOperatorPtr op = test::OperatorOf(settings);
  return ScWordFaults(*op, 1.0).Read(level, 1, 2);
}

TEST(Words, ReadAsTheNearestLevel) {
  const Settings magnitude = {{"halve", "1"}}, offset = {{"gate", "xnor"}}, unsigned_ = {{"mode", "unipolar"}};
  EXPECT_EQ(Inverted(magnitude, 5), -122);
  EXPECT_EQ(Inverted(magnitude, -127), 0);
  EXPECT_EQ(Inverted(magnitude, 127), 0) << "-0";
  EXPECT_EQ(Inverted(offset, 5), -4);
  EXPECT_EQ(Inverted(offset, -127), 127) << "code 255 of 0..254";
  EXPECT_EQ(Inverted(unsigned_, 5), 250);
  EXPECT_EQ(Inverted({{"arith", "int8"}}, 5), -6);
  EXPECT_EQ(Inverted({{"arith", "int8"}}, 127), -127) << "-128";
  EXPECT_EQ(Inverted({{"arith", "int4"}}, 3), -4);
  EXPECT_EQ(Inverted({{"arith", "int4"}}, 7), -7);
  EXPECT_EQ(Inverted({{"sc_prec", "5"}, {"halve", "1"}}, 3), -12);
}

TEST(Words, CodesStandForTheirLevels) {
  for (const Settings& settings : {Settings{{"halve", "1"}}, Settings{{"gate", "xnor"}}, Settings{{"mode", "unipolar"}},
                                   Settings{{"arith", "int8"}}}) {
    const ScOperatorPtr op = test::OperatorOf(settings);
    for (int level = op->code == ScCode::kAsymmetric ? 0 : -op->q_max; level <= op->q_max; ++level) {
      ASSERT_EQ(LevelOfCode(*op, CodeOfLevel(*op, level)), level);
    }
  }
}

// ---------------------------------------------------------------------------------------------- registers ----

TEST(Register, ClampsAfterEachGroup) {
  const ScOperatorPtr op = test::OperatorOf({{"halve", "1"}, {"acc_bits", "8"}, {"acc_group", "3"}});
  const std::vector<int> a = {127, 120, 100, -127, 90, 127, 127}, b = {127, 127, -127, 127, 127, 127, -90};
  int64_t expected = 0, group = 0;
  for (size_t d = 0; d < a.size(); ++d) {
    group += SignedCount(*op, static_cast<int64_t>(d), a[d], b[d]);
    if (d % 3 != 2 && d + 1 < a.size()) continue;
    expected = std::clamp<int64_t>(expected + group, -128, 127);
    group = 0;
  }
  const ScAccumulator accumulator(*op, 7);
  EXPECT_EQ(AccumulateLevels(*op, accumulator, {a.data(), b.data(), 0, 0, 7}, {}, 0), expected);
  EXPECT_NE(expected, 127);
}

TEST(Register, FaultsFlipItsBitsOrOne) {
  const ScOperatorPtr all = test::OperatorOf({{"halve", "1"}, {"acc_bits", "12"}, {"fault_acc", "1"}});
  const ScAccumulator every(*all, 4);
  EXPECT_EQ(every.Finish(5, 0, 4, 128, every.KeysOf({}, 0), 0), -6);
  EXPECT_EQ(every.Finish(5000, 0, 4, 128, every.KeysOf({}, 0), 0), -2048) << "clamped before";
  const ScOperatorPtr sign = test::OperatorOf({{"halve", "1"}, {"acc_bits", "12"}, {"fault_acc", "1:11"}});
  const ScAccumulator one(*sign, 4);
  EXPECT_EQ(one.Finish(5, 0, 4, 128, one.KeysOf({}, 0), 0), 5 - 2048);
  EXPECT_EQ(one.Finish(-1, 0, 4, 128, one.KeysOf({}, 0), 0), 2047);
}

// Draws differ by row, site and column.
TEST(Register, DrawsFollowThePlaceInTheModel) {
  const ScOperatorPtr op = test::OperatorOf({{"halve", "1"}, {"acc_bits", "32"}, {"fault_acc", "0.5"}});
  const ScAccumulator accumulator(*op, 4);
  const auto draw = [&](const ScSite& site, uint64_t row, uint64_t column) {
    return accumulator.Finish(0, 0, 4, 128, accumulator.KeysOf(site, row), column);
  };
  const ScSite site{.layer = 2, .op = 3, .unit = 1};
  const int32_t first = draw(site, FaultRow(0, 9), FaultColumn(1, 4));
  EXPECT_EQ(first, draw({.layer = 2, .op = 3, .unit = 1, .first_output = 5}, FaultRow(0, 9), FaultColumn(1, 4)));
  EXPECT_NE(first, draw({.layer = 1, .op = 3, .unit = 1}, FaultRow(0, 9), FaultColumn(1, 4)));
  EXPECT_NE(first, draw({.layer = 2, .op = 4, .unit = 1}, FaultRow(0, 9), FaultColumn(1, 4)));
  EXPECT_NE(first, draw({.layer = 2, .op = 3, .unit = 0}, FaultRow(0, 9), FaultColumn(1, 4)));
  EXPECT_NE(first, draw(site, FaultRow(1, 9), FaultColumn(1, 4)));
  EXPECT_NE(first, draw(site, FaultRow(0, 8), FaultColumn(1, 4)));
  EXPECT_NE(first, draw(site, FaultRow(0, 9), FaultColumn(0, 4)));
  EXPECT_NE(first, draw(site, FaultRow(0, 9), FaultColumn(1, 5)));
}

}  // namespace
}  // namespace stoch
