// SPDX-License-Identifier: Apache-2.0
#include "app/progress.h"

#include <gtest/gtest.h>

namespace stoch::cli {
namespace {

TEST(ProgressLine, ShowsShareAndTimeLeft) {
  EXPECT_EQ(ProgressLine("loading", 1, 4, 2.0), "loading [#######-----------------------]  25 %  2.0 s, 6.0 s left");
  EXPECT_EQ(ProgressLine("loading", 4, 4, 2.0), "loading [##############################] 100 %  2.0 s");
  EXPECT_EQ(ProgressLine("x", 1, 2, 125.0), "x [###############---------------]  50 %  2 min 05 s, 2 min 05 s left");
}

TEST(ProgressLine, SurvivesOddTotals) {
  EXPECT_EQ(ProgressLine("x", 0, 0, 0.0), "x [------------------------------]   0 %  0.0 s");
  EXPECT_EQ(ProgressLine("x", 9, 3, 1.0), "x [##############################] 100 %  1.0 s");
}

}  // namespace
}  // namespace stoch::cli
