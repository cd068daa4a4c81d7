// SPDX-License-Identifier: Apache-2.0
// Normalization form C: the cases that Unicode Standard Annex 15 explains, and hostile runs of marks.
#include "loader/tokenizer/unicode/nfc.h"

#include <gtest/gtest.h>

#include <chrono>

namespace stoch::test {
namespace {

std::string Utf8(char32_t code) {
  const auto byte = [](char32_t bits) { return static_cast<char>(bits); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xc0 | code >> 6), byte(0x80 | (code & 63))};
  if (code < 0x10000) return {byte(0xe0 | code >> 12), byte(0x80 | (code >> 6 & 63)), byte(0x80 | (code & 63))};
  return {byte(0xf0 | code >> 18), byte(0x80 | (code >> 12 & 63)), byte(0x80 | (code >> 6 & 63)),
          byte(0x80 | (code & 63))};
}

TEST(Nfc, ComposesAndOrders) {
  EXPECT_EQ(ToNfc(""), "");
  EXPECT_EQ(ToNfc("plain ASCII\n"), "plain ASCII\n");
  EXPECT_EQ(ToNfc("cafe\u0301 e"), "caf\u00e9 e");
  EXPECT_EQ(ToNfc("\u00e9e\u0301"), "\u00e9\u00e9");
  EXPECT_EQ(ToNfc("a\u0307\u0323"), "\u1ea1\u0307");  // the mark below comes first, and composes
  EXPECT_EQ(ToNfc("\u1100\u1161\u11a8"), "\uac01");   // Hangul
  EXPECT_EQ(ToNfc("\u212b"), "\u00c5");               // a singleton: Angstrom is A with a ring
  EXPECT_EQ(ToNfc("\u0958"), "\u0915\u093c");         // excluded from composition
  EXPECT_EQ(ToNfc("\u0344"), "\u0308\u0301");         // marks alone
  EXPECT_EQ(ToNfc("\ufb01"), "\ufb01");               // a compatibility character stays
  EXPECT_EQ(ToNfc("\U0001d15e"), "\U0001d157\U0001d165");
}

TEST(Nfc, IsAFixedPointOnEveryCodePoint) {
  int changed = 0;
  for (char32_t code = 1; code <= 0x10ffff; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    const std::string text = "x" + Utf8(code) + "\u0301";
    const std::string once = ToNfc(text);
    ASSERT_EQ(ToNfc(once), once) << static_cast<uint32_t>(code);
    changed += once != text ? 1 : 0;
  }
  EXPECT_GT(changed, 1000);
}

// Sorting by insertion, as utf8proc does it, would take minutes.
TEST(Nfc, LongRunsOfMarksTakeNoLongTime) {
  std::string text = "a";
  for (int i = 0; i < 500000; ++i) text += i % 2 == 0 ? "\u0301" : "\u0323";
  const auto begin = std::chrono::steady_clock::now();
  const std::string result = ToNfc(text);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_TRUE(result.starts_with("\u1ea1\u0323\u0323"));
  EXPECT_TRUE(result.ends_with("\u0301\u0301"));
}

}  // namespace
}  // namespace stoch::test
