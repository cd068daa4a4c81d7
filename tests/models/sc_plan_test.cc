// SPDX-License-Identifier: Apache-2.0
#include "models/sc_plan.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/expect_invalid.h"

namespace stoch::test {
namespace {

TEST(ScPlan, ExpertsHaveLengthsOfTheirLayerAndFactorsOfTheirOwn) {
  const DecoderConfig experts = NamedDecoderConfig("qwen3-30b-a3b");
  ScModelConfig sc = HalvedScModelConfig();
  EXPECT_EQ(ScPlan(sc, experts).Linear(0, ScOperatorId::kDownProj).extras, nullptr);
  auto mp = std::make_shared<MpFile>();
  mp->levels = {128, 64};
  MpBucket bucket;
  bucket.thresholds = {0.5};
  bucket.metric_lo = 0;
  bucket.metric_hi = 1;
  for (int i = 0; i < kNumScOperators; ++i) {
    mp->operator_defaults[std::string(ScOperatorName(static_cast<ScOperatorId>(i)))] = bucket;
  }
  mp->protected_len = 128;
  mp->protected_channels["down_proj:b3:u127"] = {700};
  sc.files.mp = mp;
  auto smooth = std::make_shared<SmoothFile>();
  for (int expert = 0; expert < 128; ++expert) {
    smooth->scales["3.down_proj"].insert(smooth->scales["3.down_proj"].end(), 768, static_cast<float>(1 + expert));
  }
  sc.files.smooth = smooth;
  ScPlan plan(sc, experts);
  const LinearSpec first = plan.Linear(3, ScOperatorId::kDownProj, 0);
  const LinearSpec last = plan.Linear(3, ScOperatorId::kDownProj, 127);
  EXPECT_EQ(first.sc, last.sc);
  EXPECT_EQ(first.extras->by_length, last.extras->by_length) << "one set of tables for all experts of a layer";
  EXPECT_EQ(first.extras->smooth, std::vector<float>(768, 1.0f));
  EXPECT_EQ(last.extras->smooth, std::vector<float>(768, 128.0f));
  EXPECT_TRUE(first.extras->protected_channels.empty());
  EXPECT_EQ(last.extras->protected_channels, std::vector<int32_t>{700});
  EXPECT_EQ(last.extras->site.unit, 127);
}

// A configuration with a table in one product of attention, whose T(0, -125) is `of_zero`.
ScModelConfig WithTable(ScOperatorId id, int of_zero, AttentionMode mode = AttentionMode::kPerToken) {
  auto table = std::make_shared<MultiplierTable>();
  table->entries.assign(65536, 0);
  table->entries[size_t{128} * 256 + 3] = of_zero;
  ScModelConfig sc = HalvedScModelConfig();
  sc.attention = mode;
  ScConfig& op = sc.operators[static_cast<size_t>(id)];
  op.gate = ScGate::kTable;
  op.multiplier = MultiplierTablePtr(std::move(table));
  return sc;
}

// Sums of p v begin at a page, before the window; a score is of one position, and of those that dilated attention
// admits there are no others.
TEST(ScPlan, ATableThatCountsZeroHasNoSlidingWindow) {
  const DecoderConfig windows = NamedDecoderConfig("mistral-7b");
  for (const int of_zero : {0, 7}) {
    EXPECT_NO_THROW(ScPlan(WithTable(ScOperatorId::kQk, of_zero), windows));
    EXPECT_NO_THROW(ScPlan(WithTable(ScOperatorId::kAv, of_zero), NamedDecoderConfig("llama-3.2-1b")));
  }
  EXPECT_NO_THROW(ScPlan(WithTable(ScOperatorId::kAv, 0), windows));
  EXPECT_NO_THROW(ScPlan(WithTable(ScOperatorId::kAv, 0, AttentionMode::kPerRow), windows));
  ExpectInvalid([&] { ScPlan(WithTable(ScOperatorId::kAv, 7), windows); },
                {"av.gate = table", "layer 0 has a sliding window", "counts of 0 for 0"});
  ScModelConfig dilated = WithTable(ScOperatorId::kAv, 7);
  dilated.dilated.enabled = true;
  EXPECT_NO_THROW(ScPlan(dilated, windows));
}

// Tables of lengths are calibrated on rows that see every position.
TEST(ScPlan, DilatedRowsHaveOneLength) {
  ScModelConfig sc = HalvedScModelConfig();
  sc.dilated.enabled = true;
  EXPECT_NO_THROW(ScPlan(sc, NamedDecoderConfig("llama-3.2-1b")));
  sc.files.mp = std::make_shared<MpFile>();
  ExpectInvalid([&] { ScPlan(sc, NamedDecoderConfig("llama-3.2-1b")); },
                {"--mp: attention = dilated", "rows that see every position", "per_token"});
}

// A row of a window runs over positions that it does not see, where p = 0.
TEST(ScPlan, ATableThatCountsZeroHasNoWindowModes) {
  const DecoderConfig config = NamedDecoderConfig("llama-3.2-1b");
  const auto with = [&](int of_zero, AttentionMode mode) {
    ScPlan(WithTable(ScOperatorId::kAv, of_zero, mode), config);
  };
  with(7, AttentionMode::kPerToken);
  with(0, AttentionMode::kPerRow);
  ExpectInvalid([&] { with(7, AttentionMode::kPerRow); }, {"av.gate = table", "per_token"});
  ExpectInvalid([&] { with(7, AttentionMode::kPerHead); }, {"av.gate = table", "per_token"});
}

TEST(ScPlan, SettingsOfLayersThatAreNotThere) {
  const DecoderConfig config = NamedDecoderConfig("llama-3.2-1b");
  const ScModelConfig sc = ParseScModelConfig(std::vector<std::string>{"0+16.q_proj.stoc_len=32"});
  ExpectInvalid([&] { ScPlan(sc, config); }, {"16.q_proj.stoc_len = 32", "0..15"});
  const ScModelConfig own = ParseScModelConfig(std::vector<std::string>{"0+15.q_proj.stoc_len=32"});
  ScPlan plan(own, config);
  EXPECT_EQ(plan.Linear(15, ScOperatorId::kQProj).sc->config.stoc_len, 32);
  EXPECT_EQ(plan.Linear(14, ScOperatorId::kQProj).sc->config.stoc_len, 128);
}

}  // namespace
}  // namespace stoch::test
