// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/long_strings.h"

#include <gtest/gtest.h>

namespace stoch {
namespace {

constexpr const char* kRest = R"(root ::= (("{" root_1 "\"a{0, 64}\"" text)) (=("a"))
text ::= (("\"" text_characters{3, 64} "\""))
short ::= (("\"" text_characters{3, 6} "\"") | ("\"" text_characters{3, -1} "\""))
other ::= ((root{0, 64}) | ([text_characters{0, 64}\]text_characters{0, 64}] "text_characters{0, 64}\\"))
text_characters ::= (([^\"\\\r\n]))
)";

TEST(CountedStrings, AreThoseWithManyLengths) {
  EXPECT_EQ(WithCountedStrings(kRest), R"(root ::= (("{" root_1 "\"a{0, 64}\"" text)) (=("a"))
text ::= (("\"" text_characters{3, 3} text_characters_at_most_61 "\""))
short ::= (("\"" text_characters{3, 6} "\"") | ("\"" text_characters{3, -1} "\""))
other ::= ((root{0, 64}) | ([text_characters{0, 64}\]text_characters{0, 64}] "text_characters{0, 64}\\"))
text_characters ::= (([^\"\\\r\n]))
text_characters_at_most_61[max_chars=61] ::= (([^\"\\\r\n]*))
)");
}

TEST(CountedStrings, ShareARule) {
  EXPECT_EQ(WithCountedStrings(R"(root ::= ((c{0, 9} c{4, 13} c{0, 8}))
c ::= (([^\"\\\r\n]))
)"),
            R"(root ::= ((c_at_most_9 c{4, 4} c_at_most_9 c_at_most_8))
c ::= (([^\"\\\r\n]))
c_at_most_8[max_chars=8] ::= (([^\"\\\r\n]*))
c_at_most_9[max_chars=9] ::= (([^\"\\\r\n]*))
)");
}

TEST(CountedStrings, HaveWhatTheyMustInBlocks) {
  EXPECT_EQ(
      WithCountedStrings(R"(root ::= ((c{17, -1} c{64, 64} c{75, 77} c{600, 999} c{8, -1}))
c ::= (([^\"\\\r\n]))
)"),
      R"(root ::= ((c_exactly_8 c_exactly_8 c{1, 1} c{0, -1} c_exactly_64 c_exactly_64 c_exactly_8 c{3, 3} c{0, 2} )"
      R"(c_exactly_512 c_exactly_64 c_exactly_8 c_exactly_8 c_exactly_8 c_at_most_399 c{8, -1}))
c ::= (([^\"\\\r\n]))
c_at_most_399[max_chars=399] ::= (([^\"\\\r\n]*))
c_exactly_512 ::= ((c_exactly_64 c_exactly_64 c_exactly_64 c_exactly_64 c_exactly_64 c_exactly_64 c_exactly_64 c_exactly_64))
c_exactly_64 ::= ((c_exactly_8 c_exactly_8 c_exactly_8 c_exactly_8 c_exactly_8 c_exactly_8 c_exactly_8 c_exactly_8))
c_exactly_8 ::= (([^\"\\\r\n] [^\"\\\r\n] [^\"\\\r\n] [^\"\\\r\n] [^\"\\\r\n] [^\"\\\r\n] [^\"\\\r\n] [^\"\\\r\n]))
)");
}

TEST(CountedStrings, MayBeNone) {
  EXPECT_EQ(WithCountedStrings("root ::= ((c{0, 64}))\nc ::= (([a-z]))\n"), "");
  EXPECT_EQ(WithCountedStrings(""), "");
  EXPECT_EQ(WithCountedStrings("c ::= (([^\\\"\\\\\\r\\n]))\nroot ::= ((c{0, 99999999999999999999} c{0 c{,} \"c"), "");
}

}  // namespace
}  // namespace stoch
