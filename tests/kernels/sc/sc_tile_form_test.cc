// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/sc/closed_form/tile_form.h"
#include "tests/kernels/sc/form_operators.h"

namespace stoch {
namespace {

using test::Entries;
using test::Operator;
using test::Signed;

TEST(ScTileForm, GivesEverySignedProduct) {
  for (const char* length : {"1", "32", "48", "64", "65", "96", "100", "127", "128"}) {
    for (const char* masks : {"1", "64", "256"}) {
      SCOPED_TRACE(std::string(length) + " cycles, " + masks + " masks");
      const ScOperatorPtr op = Operator({{"halve", "1"}, {"stoc_len", length}, {"scramble_masks", masks}});
      EXPECT_TRUE(HasTileForm(*op));
      const auto entries = MakeScTileEntries(*op);
      ASSERT_TRUE(entries.has_value());
      for (int mask = 0; mask < op->masks; ++mask) {
        for (int a = 0; a < 256; ++a) {
          const ScTileEntry& entry = (*entries)[static_cast<size_t>(mask) * 256 + static_cast<size_t>(a)];
          ASSERT_EQ(entry.bits & ~kTileFormBits, 0u);
          ASSERT_EQ(entry.low_steps & 1, 0);  // a boundary of 16 h reads no step
          for (int b = 0; b < 256; ++b) {
            ASSERT_EQ(TileFormProduct(entry, static_cast<uint8_t>(a), static_cast<uint8_t>(b)),
                      Signed(op->count(mask, a & 0x7f, b & 0x7f), a, b))
                << mask << ' ' << a << ' ' << b;
          }
        }
      }
    }
  }
}

TEST(ScTileForm, IsThereForItsGridAlone) {
  const std::vector<Entries> without = {
      {{"halve", "1"}, {"source", "vdc"}},   {{"halve", "1"}, {"source", "lfsr"}},
      {{"halve", "0"}, {"stoc_len", "256"}}, {{"halve", "0"}, {"stoc_len", "128"}},
      {{"halve", "1"}, {"gate", "and"}},     {{"halve", "1"}, {"sc_prec", "6"}, {"stoc_len", "32"}}};
  for (const Entries& entries : without) {
    const ScOperatorPtr op = Operator(entries);
    EXPECT_FALSE(HasTileForm(*op)) << entries.back().second;
    EXPECT_FALSE(MakeScTileEntries(*op).has_value()) << entries.back().second;
  }
}

}  // namespace
}  // namespace stoch
