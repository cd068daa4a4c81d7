// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/notation.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace stoch {
namespace {

void Expect(const std::string& text, Notation notation, const std::string& part) {
  const std::string why = WhyMisread(text, notation);
  if (part.empty()) {
    EXPECT_EQ(why, "") << text;
  } else {
    EXPECT_NE(why.find(part), std::string::npos) << text << ": " << why;
  }
}

TEST(Notations, HaveNoEscapesBeyondTheCharacters) {
  for (const char* escape : {R"(\u{110000})", R"(\u{ffffffffffffffffffff})", R"(\x110000)", R"(\U00110000)",
                             R"([a-\u{110000}])", R"([^\U7fffffff])"}) {
    Expect(escape, Notation::kRegex, "is beyond the last character, U+10FFFF");
  }
  for (const char* grammar : {R"(root ::= "\U00110000")", R"(root ::= "a" [\x110000])"}) {
    Expect(grammar, Notation::kEbnf, "is beyond the last character, U+10FFFF");
  }
  for (const char* escape :
       {R"(\u{10ffff})", R"(\u{0})", R"(\x41)", R"(\U0010FFFF)", R"(\\u{110000})", R"(\d\cA\.)", "\\"}) {
    Expect(escape, Notation::kRegex, "");
  }
  Expect(R"(root ::= "\U0010ffff\\U00110000" # \U00110000
b ::= c)",
         Notation::kEbnf, "");
}

TEST(Notations, HaveNoHalvesOfCharacters) {
  Expect(R"(a\ud83d\ude00)", Notation::kRegex, R"("\ud83d" is half of a surrogate pair)");
  Expect(R"([\u{d800}-\u{dfff}])", Notation::kRegex, "half");
  Expect(R"(root ::= "\udfff")", Notation::kEbnf, "half");
  Expect(R"([^\ud800-\udfff]+\ud7ff\ue000)", Notation::kRegex, "");
}

TEST(Notations, HaveBoundedCounts) {
  for (const char* regex : {"a{99999999999}", "a{1000001}", "a{0,4294967296}", "(a{2}){5,1000001}?"}) {
    Expect(regex, Notation::kRegex, "repeats too often; allowed are 1000000 times");
  }
  Expect("root ::= \"a\"{99999999999}", Notation::kEbnf, "\"{99999999999}\" repeats too often");
  Expect("root ::= [{}]{2, 1000001}", Notation::kEbnf, "\"{2, 1000001}\" repeats too often");
  for (const char* regex :
       {"a{1000000}", "a{0,1000000}", "a{3,}", R"(\{99999999999\})", "[{99999999999}]", "9999999999999"}) {
    Expect(regex, Notation::kRegex, "");
  }
  Expect("root ::= \"{99999999999}\" \"\\\"{99999999999}\" [{9999999}] # {99999999999}\n", Notation::kEbnf, "");
}

}  // namespace
}  // namespace stoch
