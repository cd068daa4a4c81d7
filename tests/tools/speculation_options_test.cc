// SPDX-License-Identifier: Apache-2.0
#include "app/options/speculation_options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/sc_model_config.h"
#include "tests/support/expect_invalid.h"

namespace stoch::cli {
namespace {

EngineOptions With(const std::string& speculate, Precision precision, const std::string& sc = "preset=halved") {
  EngineOptions engine;
  engine.precision = precision;
  if (precision == Precision::kSc) engine.sc = ParseScModelConfig(std::vector<std::string>{sc});
  Apply(SpeculationOptions{.speculate = speculate}, &engine);
  return engine;
}

TEST(SpeculationOptions, SayWhoGuesses) {
  EXPECT_EQ(With("off", Precision::kSc).draft_tokens, 0);
  EXPECT_EQ(With("ngram", Precision::kSc).draft_tokens, 7);
  EXPECT_TRUE(With("ngram", Precision::kSc).make_drafts);
  EXPECT_EQ(With("some/model", Precision::kSc).draft_tokens, 7);
  EXPECT_FALSE(With("some/model", Precision::kSc).make_drafts);  // who loads the model makes them
  EXPECT_TRUE(SpeculationOptions{.speculate = "some/model"}.names_model());
  for (const char* no_model : {"auto", "off", "ngram"}) {
    EXPECT_FALSE(SpeculationOptions{.speculate = no_model}.names_model()) << no_model;
  }
  EngineOptions engine;
  stoch::test::ExpectInvalid([&] { Apply({.speculate = "ngram", .draft_tokens = 16}, &engine); },
                             {"draft_tokens = 16", "1..15"});
}

// A default that no configuration is refused for.
TEST(SpeculationOptions, AutoGuessesOnlyWhereRowsHaveTheBitsOfSteps) {
  for (const Precision precision : {Precision::kSc, Precision::kFp32}) {
    EXPECT_EQ(With("auto", precision).draft_tokens, 7);
    EXPECT_TRUE(static_cast<bool>(With("auto", precision).make_drafts));
  }
  EXPECT_EQ(With("auto", Precision::kFp16).draft_tokens, 0);
  EXPECT_EQ(With("auto", Precision::kSc, "attention=per_head").draft_tokens, 0);
}

}  // namespace
}  // namespace stoch::cli
