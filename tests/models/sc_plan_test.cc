// SPDX-License-Identifier: Apache-2.0
#include "models/sc_plan.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/support/expect_invalid.h"

namespace stoch::test {
namespace {

TEST(ScPlan, AModelWithExpertsHasNoLengthsOfRowsAndNoSmoothing) {
  const DecoderConfig experts = NamedDecoderConfig("qwen3-30b-a3b");
  ScModelConfig sc = HalvedScModelConfig();
  EXPECT_EQ(ScPlan(sc, experts).Linear(0, ScOperatorId::kDownProj).extras, nullptr);
  sc.files.smooth = std::make_shared<const SmoothFile>();
  ExpectInvalid([&] { ScPlan(sc, experts); }, {"experts", "--smooth"});
  sc.files.smooth = nullptr;
  sc.files.mp = std::make_shared<const MpFile>();
  ExpectInvalid([&] { ScPlan(sc, experts); }, {"experts", "--mp"});
}

TEST(ScPlan, ATableInAttentionSeesNoSlidingWindow) {
  ScModelConfig sc = HalvedScModelConfig();
  for (const ScOperatorId id : {ScOperatorId::kQk, ScOperatorId::kAv}) {
    ScModelConfig table = sc;
    table.operators[static_cast<size_t>(id)].gate = ScGate::kTable;
    ScPlan(table, NamedDecoderConfig("llama-3.2-1b"));
    ExpectInvalid([&] { ScPlan(table, NamedDecoderConfig("mistral-7b")); }, {"gate = table", "sliding window"});
  }
}

// A row of a window runs over positions that it does not see, where p = 0.
TEST(ScPlan, ATableThatCountsZeroHasNoWindowModes) {
  ScModelConfig sc = HalvedScModelConfig();
  const DecoderConfig config = NamedDecoderConfig("llama-3.2-1b");
  const auto with = [&](int of_zero, AttentionMode mode) {
    auto table = std::make_shared<MultiplierTable>();
    table->entries.assign(65536, 0);
    table->entries[size_t{128} * 256 + 3] = of_zero;  // T(0, -125)
    sc.attention = mode;
    ScConfig& av = sc.operators[static_cast<size_t>(ScOperatorId::kAv)];
    av.gate = ScGate::kTable;
    av.multiplier = MultiplierTablePtr(std::move(table));
    ScPlan(sc, config);
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
