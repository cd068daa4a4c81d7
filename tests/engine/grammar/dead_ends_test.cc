// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/dead_ends.h"

#include <gtest/gtest.h>

namespace stoch {
namespace {

TEST(DeadEnds, AreGrammarsWithoutAText) {
  for (const char* grammar : {
           "root ::= (([]))\n",
           "root ::= ((root))\n",
           "root ::= ((\"a\" root))\n",
           "root ::= ((\"a\" b))\nb ::= ((root) | (b b))\n",
           "root ::= ((b{2, 3}))\nb ::= (([]))\n",
           "root[max_chars=3, capture=\"]\"] ::= ((\"(\" []) | ([\\]a] b))\nb ::= ((b))\n",
       }) {
    EXPECT_EQ(WhyNoText(grammar), "accepts no text") << grammar;
  }
}

TEST(DeadEnds, ArePartsWithoutAText) {
  EXPECT_EQ(WhyNoText("root ::= ((\"a\") | (\"b\" other))\nother ::= ((\"c\" other))\n"),
            "has a rule \"other\" that accepts no text");
  EXPECT_EQ(WhyNoText("root ::= ((\"a\") | (some))\nsome ::= ((\"\") | (\"b\" []))\n"),
            "has an alternative in rule \"some\" that accepts no text");
  EXPECT_EQ(WhyNoText("root ::= ((b{0, 2}))\nb ::= (([]))\n"), "has a rule \"b\" that accepts no text");
}

TEST(DeadEnds, AreNotWhatEndsOrIsNotReached) {
  for (const char* grammar : {
           "root ::= (\"\")\n",
           "root ::= (\"\" | (\"a\" root))\n",
           "root ::= ((root \"a\") | (\"b\"))\n",
           "root ::= ((\"a\"))\nunused ::= (([]))\n",
           "root ::= (([]* \"[]\" [\\[\\]] [^]))\n",
           "root ::= ((b{3, -1} c))\nb ::= ((\"x\")) (=(c))\nc ::= ((\"y\"))\n",
           "root ::= TagDispatch(\n  (\"(\", b),\n  excludes=()\n)\nb ::= ((\"a\" Token(3)))\n",
           "root ::= ((Regex(\"a)\\\"\", json_string=true) Substring(\"b\", \"c\")))\n",
           "not a grammar",
           "",
       }) {
    EXPECT_EQ(WhyNoText(grammar), "") << grammar;
  }
}

}  // namespace
}  // namespace stoch
