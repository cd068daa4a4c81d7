// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/sc/closed_form/int8_form.h"
#include "tests/kernels/sc/form_operators.h"

namespace stoch {
namespace {

using test::Entries;
using test::Operator;
using test::Signed;

TEST(ScInt8Form, GivesEverySignedProduct) {
  for (const char* length : {"1", "32", "48", "64", "65", "96", "100", "127", "128"}) {
    for (const char* masks : {"1", "64", "256"}) {
      SCOPED_TRACE(std::string(length) + " cycles, " + masks + " masks");
      const ScOperatorPtr op = Operator({{"halve", "1"}, {"stoc_len", length}, {"scramble_masks", masks}});
      EXPECT_TRUE(HasInt8Form(*op));
      const auto entries = MakeScInt8Entries(*op);
      ASSERT_TRUE(entries.has_value());
      for (int mask = 0; mask < op->masks; ++mask) {
        for (int a = 0; a < 256; ++a) {
          const ScInt8Entry& entry = (*entries)[static_cast<size_t>(mask) * 256 + static_cast<size_t>(a)];
          for (int b = 0; b < 256; ++b) {
            ASSERT_EQ(Int8FormProduct(entry, static_cast<uint8_t>(b)),
                      Signed(op->count(mask, a & 0x7f, b & 0x7f), a, b))
                << mask << ' ' << a << ' ' << b;
          }
        }
      }
    }
  }
}

// Kernels add constants of 8 blocks of 16 dimensions in 16 bits, and bits in nine planes.
TEST(ScInt8Form, ConstantsAreSmall) {
  const ScOperatorPtr op = Operator({{"halve", "1"}});
  const auto entries = MakeScInt8Entries(*op);
  ASSERT_TRUE(entries.has_value());
  for (const ScInt8Entry& entry : *entries) ASSERT_LE(entry.high >> (2 * kInt8Highs), 2u);
}

TEST(ScInt8Form, IsThereForItsGridAlone) {
  const std::vector<Entries> without = {{{"halve", "1"}, {"source", "vdc"}},
                                        {{"halve", "1"}, {"source", "lfsr"}},
                                        {{"halve", "0"}, {"stoc_len", "256"}},
                                        {{"halve", "1"}, {"gate", "and"}}};
  for (const Entries& entries : without) {
    const ScOperatorPtr op = Operator(entries);
    EXPECT_FALSE(HasInt8Form(*op)) << entries.back().second;
    EXPECT_FALSE(MakeScInt8Entries(*op).has_value()) << entries.back().second;
  }
}

}  // namespace
}  // namespace stoch
