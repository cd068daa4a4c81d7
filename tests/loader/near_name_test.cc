// SPDX-License-Identifier: Apache-2.0
#include "loader/near_name.h"

#include <gtest/gtest.h>

namespace stoch {
namespace {

const std::vector<std::string> kKnown = {"stoc_len", "sc_prec",    "seed",  "temperature", "max_tokens",
                                         "model",    "min_tokens", "top_k", "top_p",       "stop"};

TEST(NearName, IsOneOfFewChanges) {
  EXPECT_EQ(NearName("stoc_lenn", kKnown), "stoc_len");
  EXPECT_EQ(NearName("stoclen", kKnown), "stoc_len");
  EXPECT_EQ(NearName("temprature", kKnown), "temperature");
  EXPECT_EQ(NearName("max_token", kKnown), "max_tokens");
  EXPECT_EQ(NearName("modle", kKnown), "model");  // neighbours exchanged: one change
  EXPECT_EQ(NearName("sede", kKnown), "seed");
  EXPECT_EQ(NearName("top_l", kKnown), "top_k");  // the first of those that are as near
}

TEST(NearName, OrOneThatBeginsAlike) {
  EXPECT_EQ(NearName("stoc_length", kKnown), "stoc_len");
  EXPECT_EQ(NearName("stop_words", kKnown), "stop");
  EXPECT_EQ(NearName("temp", kKnown), "temperature");
  EXPECT_EQ(NearName("seedling", {"seed", "seedlings"}), "seedlings");
}

TEST(NearName, OrNone) {
  for (const char* name : {"", "flavour", "mod", "qqqq", "edes", "top"}) EXPECT_EQ(NearName(name, kKnown), "") << name;
  EXPECT_EQ(NearName("model", {}), "");
  EXPECT_EQ(NearName(std::string(40, 'a') + "b", {std::string(40, 'a')}), "");
  EXPECT_EQ(DidYouMean("flavour", kKnown), "");
  EXPECT_EQ(DidYouMean("modle", kKnown), "; did you mean model?");
}

}  // namespace
}  // namespace stoch
