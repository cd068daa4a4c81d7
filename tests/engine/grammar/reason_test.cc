// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/reason.h"

#include <gtest/gtest.h>

namespace stoch {
namespace {

using Kind = GrammarSpec::Kind;

TEST(Reasons, HaveNoConditionsOfTheSource) {
  EXPECT_EQ(
      ReasonOf(Kind::kEbnf, "Check failed: (ids[i] >= 0 && ids[i] < (size)) is false: Token id 9 is out of range"),
      "Token id 9 is out of range");
  EXPECT_EQ(ReasonOf(Kind::kEbnf, "Internal check failed: (count >= 1) is false: "), "has what is not supported");
}

TEST(Reasons, KeepPlacesInWhatTheUserWrote) {
  const std::string ebnf = "EBNF parser error at line 2, column 10: Rule \"b\" is not defined.";
  EXPECT_EQ(ReasonOf(Kind::kEbnf, ebnf), "line 2, column 10: Rule \"b\" is not defined");
  EXPECT_EQ(ReasonOf(Kind::kRegex, ebnf), "Rule \"b\" is not defined");
  const std::string regex = "Regex parsing error at position 3: Unclosed '['";
  EXPECT_EQ(ReasonOf(Kind::kRegex, regex), "character 3: Unclosed '['");
  EXPECT_EQ(ReasonOf(Kind::kJsonSchema, regex), "in a pattern, character 3: Unclosed '['");
}

TEST(Reasons, PromiseNothingElseInstead) {
  EXPECT_EQ(ReasonOf(Kind::kJsonSchema, "multipleOf is not supported for type:number; ignoring multipleOf"),
            "multipleOf is not supported for type:number");
  EXPECT_EQ(ReasonOf(Kind::kRegex, "Regex parsing warning at position 2: '$' should be at the end. It is ignored."),
            "character 2: '$' should be at the end");
}

TEST(Reasons, AreOneLineOfBoundedLength) {
  EXPECT_EQ(ReasonOf(Kind::kEbnf, "got \n\t"), "got");
  EXPECT_LE(ReasonOf(Kind::kEbnf, std::string(100000, 'a')).size(), 400u);
}

}  // namespace
}  // namespace stoch
