// SPDX-License-Identifier: Apache-2.0
// Count tables against the definition of one product, cycle by cycle; number sources against their properties.
#include "kernels/sc/sc_operator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "kernels/sc/number_source.h"

namespace stoch {
namespace {

using Entries = std::vector<std::pair<std::string, std::string>>;

ScConfig Config(const Entries& entries) {
  ScConfig config;
  for (const auto& [name, value] : entries) SetScParameter(config, name, value);
  return config;
}

// The comparator boundary by floating point, as docs/sc_arithmetic.md#2-quantizers writes it.
int Boundary(const ScOperator& op, int level) {
  const double steps = op.code == ScCode::kOffset ? 2.0 * op.q_max : op.q_max;
  return static_cast<int>(std::nearbyint(std::min<double>(level, steps) * op.config.rng_levels / steps));
}

int LiteralCount(const ScOperator& op, const std::vector<int>& a, const std::vector<int>& b, int qa, int qb) {
  const int va = Boundary(op, qa);
  const int vb = Boundary(op, qb);
  int enabled = 0;
  int both = 0;
  int agree = 0;
  for (size_t t = 0; t < a.size(); ++t) {
    enabled += a[t] < va ? 1 : 0;
    both += a[t] < va && b[t] < vb ? 1 : 0;
    agree += (a[t] < va) == (b[t] < vb) ? 1 : 0;
  }
  if (op.config.gate == ScGate::kAnd) return both;
  if (op.config.gate == ScGate::kXnor) return 2 * agree - op.config.stoc_len;
  int count = 0;
  for (int i = 0; i < enabled; ++i) count += b[static_cast<size_t>(i)] < vb ? 1 : 0;
  return count;
}

class CountTable : public testing::TestWithParam<std::vector<std::pair<std::string, std::string>>> {};

TEST_P(CountTable, EqualsTheDefinitionCycleByCycle) {
  const ScOperatorPtr op = MakeScOperator(Config(GetParam()));
  ASSERT_GT(op->max_count, 0);
  const int mask_step = std::max(1, op->masks / 4) + (op->masks > 4 ? 1 : 0);
  for (int mask = 0; mask < op->masks; mask += mask_step) {
    const std::vector<int> a = ComparatorValues(op->config, ScSide::kA, mask);
    const std::vector<int> b = ComparatorValues(op->config, ScSide::kB, mask);
    for (int qa = 0; qa < op->levels; ++qa) {
      for (int qb = 0; qb < op->levels; ++qb) {
        ASSERT_EQ(op->count(mask, qa, qb), LiteralCount(*op, a, b, qa, qb)) << mask << ' ' << qa << ' ' << qb;
      }
    }
  }
}

TEST_P(CountTable, StreamsAndRanksGiveTheSameCounts) {
  const ScOperatorPtr op = MakeScOperator(Config(GetParam()));
  if (!op->has_streams) return;
  const size_t words = static_cast<size_t>(op->stream_words);
  for (int mask = 0; mask < op->masks; mask += std::max(1, op->masks - 1)) {
    for (int qa = 0; qa < op->levels; qa += 3) {
      for (int qb = 0; qb < op->levels; ++qb) {
        const size_t row = static_cast<size_t>(mask) * static_cast<size_t>(op->levels);
        const int rank = op->ranks_b[row + static_cast<size_t>(qb)];
        int count = 0;
        for (int j = 0; j < rank; ++j) {
          const uint64_t word = op->streams_a[(row + static_cast<size_t>(qa)) * words + static_cast<size_t>(j / 64)];
          count += static_cast<int>((word >> (j % 64)) & 1);
        }
        ASSERT_EQ(count, op->count(mask, qa, qb)) << mask << ' ' << qa << ' ' << qb;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Configurations, CountTable,
    testing::Values(std::vector<std::pair<std::string, std::string>>{{"stoc_len", "256"}},
                    std::vector<std::pair<std::string, std::string>>{{"halve", "1"}},
                    std::vector<std::pair<std::string, std::string>>{{"halve", "1"}, {"stoc_len", "96"}},
                    std::vector<std::pair<std::string, std::string>>{{"stoc_len", "17"}, {"scramble", "counter"}},
                    std::vector<std::pair<std::string, std::string>>{{"sc_prec", "3"}},
                    std::vector<std::pair<std::string, std::string>>{{"sc_prec", "5"}, {"rng_levels", "20"}},
                    std::vector<std::pair<std::string, std::string>>{{"mode", "unipolar"}, {"stoc_len", "100"}},
                    std::vector<std::pair<std::string, std::string>>{{"gate", "and"}, {"source", "lfsr"}},
                    std::vector<std::pair<std::string, std::string>>{
                        {"source", "lfsr"}, {"lfsr_restart", "mask"}, {"scramble", "off"}, {"halve", "1"}},
                    std::vector<std::pair<std::string, std::string>>{{"source", "vdc"}, {"stoc_len", "48"}},
                    std::vector<std::pair<std::string, std::string>>{
                        {"source", "random"}, {"scramble", "random"}, {"source_seed", "9"}, {"stoc_len", "128"}},
                    std::vector<std::pair<std::string, std::string>>{{"sc_prec", "6"}, {"gate", "xnor"}}));

TEST(NumberSource, SobolIsAPermutationOfTheGrid) {
  for (int p = 3; p <= 8; ++p) {
    const ScConfig config = Resolve(Config({{"sc_prec", std::to_string(p)}}));
    for (const ScSide side : {ScSide::kA, ScSide::kB}) {
      const std::vector<int> values = SourceValues(config, side, 1 << p, 0);
      EXPECT_EQ(std::set<int>(values.begin(), values.end()).size(), size_t{1} << p);
    }
  }
  const std::vector<int> b = SourceValues(Resolve(ScConfig{}), ScSide::kB, 8, 0);
  EXPECT_EQ(b, (std::vector<int>{0, 128, 192, 64, 96, 224, 160, 32}));
}

TEST(NumberSource, LfsrVisitsEveryStateOnceAndSidesDiffer) {
  for (int p = 3; p <= 8; ++p) {
    ScConfig config = Config({{"sc_prec", std::to_string(p)}, {"source", "lfsr"}, {"source_seed", "3"}});
    config = Resolve(config);
    const int period = (1 << p) - 1;
    const std::vector<int> a = SourceValues(config, ScSide::kA, period, 0);
    const std::vector<int> b = SourceValues(config, ScSide::kB, period, 0);
    EXPECT_EQ(std::set<int>(a.begin(), a.end()).size(), static_cast<size_t>(period)) << p;
    EXPECT_EQ(std::set<int>(b.begin(), b.end()).size(), static_cast<size_t>(period)) << p;
    EXPECT_EQ(std::count(a.begin(), a.end(), 0), 0);
    EXPECT_NE(a, b);
    const std::vector<int> shifted = SourceValues(config, ScSide::kA, period, 2);
    EXPECT_TRUE(std::equal(shifted.begin(), shifted.end() - 2, a.begin() + 2));
  }
}

TEST(NumberSource, BitReversalScramblingIsOverAllBitsWhateverTheMaskCount) {
  const ScConfig config = Resolve(Config({{"halve", "1"}, {"scramble_masks", "64"}}));
  EXPECT_EQ(ScrambleMask(config, 1), 128);
  EXPECT_EQ(ScrambleMask(config, 2), 64);
  EXPECT_EQ(ScrambleMask(config, 63), 0b11111100);
  EXPECT_EQ(DistinctMasks(config), 64);
  EXPECT_EQ(DistinctMasks(Resolve(ScConfig{})), 1);  // full grid, full length: nothing to scramble
}

TEST(ScOperator, EqualConfigurationsShareOneOperatorWhileItLives) {
  const ScOperatorPtr first = MakeScOperator(Config({{"halve", "1"}}));
  EXPECT_EQ(first, MakeScOperator(Config({{"halve", "1"}, {"stoc_len", "128"}})));
  EXPECT_NE(first, MakeScOperator(Config({{"halve", "1"}, {"stoc_len", "127"}})));
}

TEST(ScOperator, ProductsAreCloseToTheExactOnes) {
  // The published pair of sources at full length: rms error of one product below 0.7 counts of 256.
  const ScOperatorPtr op = MakeScOperator(ScConfig{});
  double error = 0;
  for (int a = 0; a < op->levels; ++a) {
    for (int b = 0; b < op->levels; ++b) {
      const double exact = static_cast<double>(a * b) * 256 / (127.0 * 127.0);
      error += (op->count(0, a, b) - exact) * (op->count(0, a, b) - exact);
    }
  }
  EXPECT_LT(std::sqrt(error / (op->levels * op->levels)), 0.7);
  EXPECT_EQ(op->count(0, 127, 127), 256);
  EXPECT_EQ(op->count(0, 0, 127), 0);
}

// Counts of one's own, here those of `from`, with `change` applied to the entries.
template <typename Change>
ScOperatorPtr FromCounts(const ScOperator& from, const Change& change) {
  auto table = std::make_shared<stoch::CountTable>();
  table->masks = from.masks;
  table->levels = from.levels;
  table->entries.assign(from.counts.begin(), from.counts.end());
  change(&table->entries);
  ScConfig config;
  config.gate = ScGate::kCounts;
  config.mode = from.config.mode;
  config.stoc_len = from.config.stoc_len;
  config.counts = "counts";
  config.count_table = CountTablePtr(table);
  return MakeScOperator(config);
}

TEST(ScOperator, CountsThatRiseWithSideBHaveStreams) {
  for (const Entries& settings :
       {Entries{{"halve", "1"}}, Entries{{"stoc_len", "100"}}, Entries{{"gate", "and"}, {"mode", "unipolar"}}}) {
    const ScOperatorPtr built_in = MakeScOperator(Config(settings));
    const ScOperatorPtr op = FromCounts(*built_in, [](std::vector<int32_t>*) {});
    ASSERT_TRUE(op->has_streams);
    ASSERT_EQ(op->counts, built_in->counts);
    const auto words = static_cast<size_t>(op->stream_words);
    for (int mask = 0; mask < op->masks; ++mask) {
      for (int a = 0; a < op->levels; a += 3) {
        const uint64_t* bits = op->streams_a.data() + static_cast<size_t>(mask * op->levels + a) * words;
        for (int b = 0; b < op->levels; ++b) {
          int ones = 0;
          const int rank = op->ranks_b[static_cast<size_t>(mask * op->levels + b)];
          for (int i = 0; i < rank; ++i) ones += static_cast<int>(bits[i / 64] >> (i % 64) & 1);
          ASSERT_EQ(ones, op->count(mask, a, b)) << mask << ", " << a << ", " << b;
        }
      }
    }
  }
}

TEST(ScOperator, CountsThatFallOrRiseTooMuchHaveNone) {
  const ScOperatorPtr built_in = MakeScOperator(Config({{"halve", "1"}}));
  const auto at = [](int a, int b) { return static_cast<size_t>(a * 128 + b); };
  const ScOperatorPtr falls = FromCounts(*built_in, [&](auto* entries) { (*entries)[at(100, 90)] = 0; });
  EXPECT_FALSE(falls->has_streams);
  const ScOperatorPtr rises = FromCounts(*built_in, [&](auto* entries) {
    for (int b = 1; b < 128; ++b) (*entries)[at(3, b)] = 200;
  });
  EXPECT_FALSE(rises->has_streams);
  EXPECT_EQ(rises->count(0, 3, 5), 200);
}

}  // namespace
}  // namespace stoch
