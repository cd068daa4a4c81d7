// SPDX-License-Identifier: Apache-2.0
// Attention of deep contexts, whose positions threads share, gives the bits of one thread.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>

#include "kernels/registry.h"
#include "tests/kernels/attention_scenario.h"
#include "tests/kernels/sc/config_with.h"

namespace stoch::test {
namespace {

std::unique_ptr<Backend> Open(int threads) {
  return OpenBackend("cpu", {.threads = threads, .cpu_variant = ""}, nullptr);
}

AttentionShape Deep(AttentionMode mode, int heads, int kv_heads, int head_dim) {
  AttentionShape shape;
  shape.mode = mode;
  shape.qk.halve = true;
  shape.av.halve = true;
  shape.num_heads = heads;
  shape.num_kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.max_context = 1024;
  return shape;
}

// A prompt, then steps in which a deep sequence has one row next to a shallow one, several rows, and nobody else.
const Passes kPasses = {{{0, 600}}, {{0, 1}, {1, 3}}, {{0, 6}, {1, 1}}, {{0, 1}}};

class DeepAttention : public testing::TestWithParam<AttentionMode> {};

TEST_P(DeepAttention, AnyNumberOfThreadsGivesTheSameBits) {
  for (const auto& [heads, kv_heads, head_dim] : {std::array<int, 3>{4, 2, 24}, {4, 1, 72}, {3, 3, 16}}) {
    const AttentionShape shape = Deep(GetParam(), heads, kv_heads, head_dim);
    const AttentionRows expected = RunAttention(*Open(1), shape, kPasses);
    ASSERT_EQ(expected.size(), 608u + 4u);
    for (const int threads : {2, 3, 7}) {
      EXPECT_EQ(Differences(expected, RunAttention(*Open(threads), shape, kPasses)), "")
          << threads << " threads, head_dim " << head_dim;
    }
  }
}

// Whole pages before a sliding window are not read at all; the first thread alone sees the same positions.
TEST_P(DeepAttention, WindowsGiveTheSameBits) {
  AttentionShape shape = Deep(GetParam(), 4, 2, 24);
  const AttentionRows all = RunAttention(*Open(1), shape, kPasses);
  for (const int window : {5, 64, 333}) {
    shape.window = window;
    const AttentionRows expected = RunAttention(*Open(1), shape, kPasses);
    EXPECT_NE(Differences(expected, all), "");
    EXPECT_EQ(Differences(expected, RunAttention(*Open(3), shape, kPasses)), "") << window;
  }
  shape.window = 608;
  EXPECT_EQ(Differences(all, RunAttention(*Open(2), shape, kPasses)), "");
}

// Registers and adders of both products. A register that holds every sum changes nothing; one that does not, or an adder
// that loses carries, changes outputs.
TEST(WindowHardware, RegistersAndAddersAreOfTheWholeWindow) {
  for (const AttentionMode mode : {AttentionMode::kPerRow, AttentionMode::kPerHead}) {
    const AttentionShape ideal = Deep(mode, 4, 2, 24);
    const AttentionRows expected = RunAttention(*Open(1), ideal, kPasses);
    for (ScConfig AttentionShape::*op : {&AttentionShape::qk, &AttentionShape::av}) {
      const auto run = [&](const char* setting, int threads) {
        AttentionShape shape = ideal;
        shape.*op = With(ideal.*op, setting);
        return RunAttention(*Open(threads), shape, kPasses);
      };
      EXPECT_EQ(Differences(run("acc_bits=31", 1), expected), "");
      for (const char* setting : {"acc_bits=8", "acc_bits=7,acc_group=8", "adder=or,adder_group=4"}) {
        const AttentionRows changed = run(setting, 1);
        EXPECT_NE(Differences(changed, expected), "") << setting;
        EXPECT_EQ(Differences(changed, run(setting, 3)), "") << setting;
      }
    }
  }
}

// Streams of 256 cycles have counts of 256, which are added apart.
TEST(DeepAttentionWide, CountsOf256AreAddedOnce) {
  AttentionShape shape = Deep(AttentionMode::kPerToken, 4, 2, 24);
  shape.qk.halve = false;
  shape.av.halve = false;
  EXPECT_EQ(Differences(RunAttention(*Open(1), shape, kPasses), RunAttention(*Open(3), shape, kPasses)), "");
}

// Queries of length 0 see every position alike, as queries of zeros do.
TEST(MixedAttention, QueriesOfLengthZeroHaveScoresOfZero) {
  AttentionShape shape = Deep(AttentionMode::kPerToken, 4, 2, 24);
  AttentionShape zeros = shape;
  zeros.qk_gain = 0;
  auto rule = std::make_shared<ScLengthRule>();
  rule->thresholds = {0.5f};
  rule->levels = {128, 0};
  rule->hi = 1e6f;  // beyond every query
  auto extras = std::make_shared<ScExtras>();
  extras->op = "qk";
  extras->lengths = rule;
  extras->by_length = MakeScOperators(shape.qk, rule->Lengths());
  shape.qk_extras = extras;
  const AttentionRows expected = RunAttention(*Open(1), zeros, kPasses);
  EXPECT_EQ(Differences(expected, RunAttention(*Open(1), shape, kPasses)), "");
  EXPECT_EQ(Differences(expected, RunAttention(*Open(3), shape, kPasses)), "");
  rule->hi = 1e-6f;
  EXPECT_NE(Differences(expected, RunAttention(*Open(1), shape, kPasses)), "");
}

INSTANTIATE_TEST_SUITE_P(Modes, DeepAttention,
                         testing::Values(AttentionMode::kPerToken, AttentionMode::kExact, AttentionMode::kPerHead),
                         [](const auto& spec) {
                           return spec.param == AttentionMode::kExact      ? "exact"
                                  : spec.param == AttentionMode::kPerToken ? "per_token"
                                                                           : "per_head";
                         });

}  // namespace
}  // namespace stoch::test
