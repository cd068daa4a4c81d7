// SPDX-License-Identifier: Apache-2.0
// Counts made from factors and residuals against the counts themselves, for every level and sign.
#include "kernels/sc/sc_residual.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace stoch {
namespace {

using Entries = std::vector<std::pair<std::string, std::string>>;

ScOperatorPtr Operator(const Entries& entries) {
  ScConfig config;
  for (const auto& [name, value] : entries) SetScParameter(config, name, value);
  return MakeScOperator(config);
}

// s_a s_b count as the header writes it.
int SignedCount(const ScResiduals& r, int mask, int a, bool negative_a, int b, bool negative_b) {
  const size_t row = static_cast<size_t>(mask * kResidualLevels + a);
  int sum = 0;
  int terms = 0;
  for (int k = 0; k < kResidualTerms; ++k) {
    const int f = (negative_a ? -1 : 1) * r.factors[row].factor[static_cast<size_t>(k)];
    const int v = b >> kResidualShifts[static_cast<size_t>(k)];
    sum += f;
    terms += f * (negative_b ? ~v : v);
  }
  uint32_t bits = r.residuals[row * kResidualWords + static_cast<size_t>(b / 8)] >> (b % 8 * 4) & 0xf;
  if (negative_a != negative_b) bits ^= 0xf;
  EXPECT_EQ((kMaxResidual - sum) % 2, 0);
  return terms + ResidualValue(bits) - (kMaxResidual - sum) / 2;
}

class ScResidual : public testing::TestWithParam<Entries> {};

TEST_P(ScResidual, MakesEveryCountOfEverySign) {
  const ScOperatorPtr op = Operator(GetParam());
  const std::optional<ScResiduals> r = MakeScResiduals(*op);
  ASSERT_TRUE(r.has_value());
  ASSERT_EQ(r->factors.size(), static_cast<size_t>(op->masks * kResidualLevels));
  for (int mask = 0; mask < op->masks; ++mask) {
    for (int a = 0; a < op->levels; ++a) {
      for (int b = 0; b < op->levels; ++b) {
        const int count = op->count(mask, a, b);
        for (const bool negative_a : {false, true}) {
          for (const bool negative_b : {false, true}) {
            ASSERT_EQ(SignedCount(*r, mask, a, negative_a, b, negative_b), negative_a != negative_b ? -count : count)
                << mask << ' ' << a << ' ' << b;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Operators, ScResidual,
                         testing::Values(Entries{{"halve", "1"}}, Entries{{"halve", "1"}, {"stoc_len", "96"}},
                                         Entries{{"halve", "1"}, {"stoc_len", "64"}},
                                         Entries{{"halve", "1"}, {"stoc_len", "48"}},
                                         Entries{{"halve", "1"}, {"stoc_len", "32"}},
                                         Entries{{"halve", "1"}, {"scramble", "off"}},
                                         Entries{{"halve", "1"}, {"scramble", "counter"}},
                                         Entries{{"halve", "1"}, {"scramble_masks", "128"}}));

TEST(ScResidualNone, ForCountsThatNoThreeTermsComeNear) {
  // Side b's values are all small, so that every count jumps at once.
  ScConfig config;
  SetScParameter(config, "halve", "1");
  ScOperator op = *MakeScOperator(config);
  EXPECT_TRUE(MakeScResiduals(op).has_value());
  for (int b = 60; b < op.levels; ++b) op.counts[static_cast<size_t>(100 * op.levels + b)] = 128;
  EXPECT_FALSE(MakeScResiduals(op).has_value());
}

TEST(ScResidualNone, ForOtherCodesAndSizesOfTable) {
  // One that has them but for what it says of itself.
  const ScOperatorPtr op = Operator({{"halve", "1"}});
  ASSERT_TRUE(MakeScResiduals(*op).has_value());
  ScOperator other = *op;
  other.code = ScCode::kAsymmetric;
  EXPECT_FALSE(MakeScResiduals(other).has_value());
  other = *op;
  other.levels = kResidualLevels / 2;
  EXPECT_FALSE(MakeScResiduals(other).has_value());
  EXPECT_FALSE(MakeScResiduals(*Operator({{"mode", "unipolar"}})).has_value());
  EXPECT_FALSE(MakeScResiduals(*Operator({{"halve", "1"}, {"sc_prec", "7"}})).has_value());
}

}  // namespace
}  // namespace stoch
