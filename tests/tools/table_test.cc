// SPDX-License-Identifier: Apache-2.0
#include "app/report/table.h"

#include <gtest/gtest.h>

#include "loader/range_text.h"

namespace stoch::cli {
namespace {

TEST(Table, MarkdownIsAligned) {
  Table table({"name", "ms"});
  table.Add({"±a", "10.25"});
  EXPECT_EQ(table.Markdown(),
            "| name |    ms |\n"
            "| ---- | ----: |\n"
            "| ±a   | 10.25 |\n");
}

TEST(Table, CsvQuotesWhatNeedsIt) {
  Table table({"sc", "ms"});
  table.Add({"halve=1,stoc_len=64", "say \"1\""});
  EXPECT_EQ(table.Csv(), "sc,ms\n\"halve=1,stoc_len=64\",\"say \"\"1\"\"\"\n");
}

TEST(Ranges, SayOneNumberOrNone) {
  EXPECT_EQ(RangeText(2, 5), "2..5");
  EXPECT_EQ(RangeText(3, 3), "3");
  EXPECT_EQ(RangeText(3, 2), "none");
}

}  // namespace
}  // namespace stoch::cli
