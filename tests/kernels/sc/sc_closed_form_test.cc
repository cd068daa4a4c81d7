// SPDX-License-Identifier: Apache-2.0
// Which operators have the closed form, and that it is their counts.
#include <gtest/gtest.h>

#include <bit>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/sc/closed_form/closed_form.h"
#include "kernels/sc/number_source.h"

namespace stoch {
namespace {

using Entries = std::vector<std::pair<std::string, std::string>>;

ScOperatorPtr Operator(const Entries& entries) {
  ScConfig config;
  for (const auto& [name, value] : entries) SetScParameter(config, name, value);
  return MakeScOperator(config);
}

// Cycles that a level of side a enables, of a definition apart from streams.
int Enabled(const ScOperator& op, int mask, int level) {
  const std::vector<int> boundaries = LevelBoundaries(op.levels, op.q_max, op.config.rng_levels);
  int enabled = 0;
  for (const int value : ComparatorValues(op.config, ScSide::kA, mask)) {
    enabled += value < boundaries[static_cast<size_t>(level)] ? 1 : 0;
  }
  return enabled;
}

// #{n < k : B[n] < v} of every level of side b, from the sequence itself.
std::vector<int> CountsOf(const ScOperator& op, int mask, int k) {
  const std::vector<int> values = ComparatorValues(op.config, ScSide::kB, mask);
  std::vector<int> counts;
  for (const int boundary : LevelBoundaries(op.levels, op.q_max, op.config.rng_levels)) {
    int count = 0;
    for (int n = 0; n < k; ++n) count += values[static_cast<size_t>(n)] < boundary ? 1 : 0;
    counts.push_back(count);
  }
  return counts;
}

// Form B of every k, also of those that no level enables.
void ExpectCounts(const ScClosedForm& form, const ScOperator& op) {
  for (int mask = 0; mask < op.masks; ++mask) {
    for (int k = 0; k <= op.config.stoc_len; ++k) {
      const ScAverageTables tables = MakeAverageTables(form, mask, k);
      const std::vector<int> counts = CountsOf(op, mask, k);
      for (size_t b = 0; b < counts.size(); ++b) {
        ASSERT_EQ((tables.high[form.high[b]] + tables.low[form.low[b]]) / 2, counts[b])
            << "mask " << mask << ", k " << k << ", level " << b;
      }
    }
  }
}

void ExpectFormA(const ScClosedForm& form, const ScOperator& op) {
  for (int mask = 0; mask < op.masks; ++mask) {
    for (int a = 0; a < op.levels; ++a) {
      ASSERT_EQ(form.enabled[static_cast<size_t>(mask * op.levels + a)], Enabled(op, mask, a));
      for (int b = 0; b < op.levels; ++b) ASSERT_EQ(ClosedFormCount(form, mask, a, b), op.count(mask, a, b));
    }
  }
}

struct Case {
  Entries entries;
  bool has_form;
};

class ScClosedFormCases : public testing::TestWithParam<Case> {};

TEST_P(ScClosedFormCases, HoldsInEveryBlockOrInNone) {
  const ScOperatorPtr op = Operator(GetParam().entries);
  for (int log2_block = 1; 1 << log2_block <= op->config.rng_levels; ++log2_block) {
    SCOPED_TRACE("blocks of " + std::to_string(1 << log2_block));
    const std::optional<ScClosedForm> form = MakeScClosedForm(*op, log2_block);
    // The first two cycles of a source nearly always differ in their high digit alone, so short blocks of a short
    // stream prove nothing.
    if (!GetParam().has_form && 1 << log2_block < 8) continue;
    ASSERT_EQ(form.has_value(), GetParam().has_form);
    if (!form) continue;
    ExpectFormA(*form, *op);
    if (log2_block == 3) ExpectCounts(*form, *op);
  }
  EXPECT_FALSE(MakeScClosedForm(*op, std::countr_zero(static_cast<unsigned>(op->config.rng_levels)) + 1).has_value());
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto add = [&](Entries entries, bool has_form) { cases.push_back({std::move(entries), has_form}); };
  for (const char* length : {"1", "2", "3", "7", "8", "9", "17", "33", "64", "96", "100", "127", "128"}) {
    add({{"halve", "1"}, {"stoc_len", length}}, true);
  }
  for (const char* precision : {"3", "4", "5", "6", "7"}) {
    add({{"halve", "1"}, {"sc_prec", precision}}, true);
    add({{"sc_prec", precision}}, true);
  }
  for (const char* scramble : {"off", "counter", "random"}) add({{"halve", "1"}, {"scramble", scramble}}, true);
  add({{"halve", "1"}, {"scramble_masks", "128"}}, true);
  add({{"stoc_len", "256"}}, true);
  for (const char* length : {"64", "128", "192"}) add({{"stoc_len", length}}, true);
  add({{"halve", "1"}, {"stoc_len", "32"}, {"rng_levels", "32"}}, true);
  add({{"mode", "unipolar"}, {"stoc_len", "128"}}, true);
  for (const char* source : {"vdc", "lfsr", "random"}) add({{"halve", "1"}, {"source", source}}, false);
  add({{"halve", "1"}, {"gate", "and"}}, false);
  add({{"gate", "xnor"}}, false);
  add({{"halve", "1"}, {"rng_levels", "100"}}, false);  // a grid that is no power of two
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Operators, ScClosedFormCases, testing::ValuesIn(Cases()));

// A list source whose side b is `values`, unscrambled.
ScOperatorPtr ListOperator(const std::vector<int>& values) {
  std::string list;
  for (const int value : values) list += (list.empty() ? "" : ":") + std::to_string(value);
  return Operator({{"sc_prec", "7"},
                   {"halve", "1"},
                   {"scramble", "off"},
                   {"source", "list"},
                   {"source_list_a", list},
                   {"source_list_b", list}});
}

TEST(ScClosedFormLists, OfTriangularNetsAlone) {
  // Column i of a generator matrix is what bit i of the cycle adds to the value, by xor; 7 bits, cycle 0..63.
  const auto sequence = [](const std::vector<int>& columns) {
    std::vector<int> values;
    for (int n = 0; n < 64; ++n) {
      int value = 0;
      for (size_t i = 0; i < columns.size(); ++i) value ^= (n >> i & 1) != 0 ? columns[i] : 0;
      values.push_back(value);
    }
    return values;
  };
  // Bit i of the cycle sets digit i from the top and any above it.
  EXPECT_TRUE(MakeScClosedForm(*ListOperator(sequence({64, 96, 80, 72, 124, 66})), 3).has_value());
  // The same net after a scrambling that lets lower digits depend on higher ones.
  EXPECT_FALSE(MakeScClosedForm(*ListOperator(sequence({64 + 8, 96, 80, 72, 124, 66})), 3).has_value());
}

TEST(ScClosedFormChecks, OneChangedCountIsFound) {
  const ScOperatorPtr op = Operator({{"halve", "1"}});
  ASSERT_TRUE(MakeScClosedForm(*op, 3).has_value());
  for (const int mask : {0, 31, 63}) {
    for (const int level : {1, 64, 127}) {
      ScOperator other = *op;
      const auto row = static_cast<size_t>(mask) * static_cast<size_t>(op->levels) + static_cast<size_t>(level);
      other.counts[row * static_cast<size_t>(op->levels) + static_cast<size_t>(level)] += 1;
      EXPECT_FALSE(MakeScClosedForm(other, 3).has_value()) << mask << ' ' << level;
    }
  }
}

TEST(ScClosedFormChecks, ShorterStreamsReadTheTablesOfLongerOnes) {
  const ScOperatorPtr longest = Operator({{"halve", "1"}});
  const std::optional<ScClosedForm> form = MakeScClosedForm(*longest, 3);
  ASSERT_TRUE(form.has_value());
  for (const char* length : {"32", "48", "96"}) {
    const ScOperatorPtr op = Operator({{"halve", "1"}, {"stoc_len", length}});
    for (int mask = 0; mask < op->masks; mask += 9) {
      for (int a = 0; a < op->levels; ++a) {
        const ScAverageTables tables = MakeAverageTables(*form, mask, Enabled(*op, mask, a));
        for (size_t b = 0; b < form->high.size(); ++b) {
          ASSERT_EQ((tables.high[form->high[b]] + tables.low[form->low[b]]) / 2,
                    op->count(mask, a, static_cast<int>(b)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace stoch
