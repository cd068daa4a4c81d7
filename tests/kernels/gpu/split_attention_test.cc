// SPDX-License-Identifier: Apache-2.0
// CUDA attention over contexts that are cut over the whole GPU gives the CPU's bits, and so do sliding windows.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/kernels/attention_scenario.h"
#include "tests/kernels/gpu/attention_fixture.h"

namespace stoch {
namespace {

using test::AttentionShape;
using test::Halved;
using test::kMixed;
using test::kModes;
using test::LlamaOf8B;
using test::Passes;
using test::Step;
using test::WorstRow;

// Contexts are cut from 257 positions on, although it might not pay: by resident blocks where all rows fit the GPU,
// otherwise by a kernel for each step; on a GPU without clusters; and by resident blocks with look-ups.
enum class Cut : uint8_t { kClusters, kNoClusters, kLookups };

class CudaSplitAttention : public test::CudaAttention, public testing::WithParamInterface<Cut> {
 protected:
  test::Variables Limits() const override {
    test::Variables limits{{"STOCH_TEST_SPLIT_FROM", "257"}};
    if (GetParam() == Cut::kNoClusters) limits.emplace_back("STOCH_TEST_NO_CLUSTERS", "1");
    if (GetParam() == Cut::kLookups) limits.emplace_back("STOCH_TEST_LOOKUP_FROM", "257");
    return limits;
  }
};
INSTANTIATE_TEST_SUITE_P(Cuts, CudaSplitAttention, testing::Values(Cut::kClusters, Cut::kNoClusters, Cut::kLookups),
                         [](const testing::TestParamInfo<Cut>& cut) {
                           return cut.param == Cut::kClusters     ? "Clusters"
                                  : cut.param == Cut::kNoClusters ? "NoClusters"
                                                                  : "Lookups";
                         });

// A prompt of `context` positions for each of the sequences, in passes of at most 2000, then steps.
Passes DeepSteps(const std::vector<int>& contexts, int steps) {
  Passes passes;
  for (size_t s = 0; s < contexts.size(); ++s) {
    for (int begin = 0; begin < contexts[s]; begin += 2000) {
      passes.push_back({{static_cast<int>(s), std::min(2000, contexts[s] - begin)}});
    }
  }
  for (int i = 0; i < steps; ++i) passes.push_back(Step(static_cast<int>(contexts.size())));
  return passes;
}

// Contexts that are cut over the GPU: every number of heads that a block takes, one or two tiles of columns, pages that
// a warp's positions share or not, rows of prompts too short for tiles.
TEST_P(CudaSplitAttention, SplitContextsOfEveryGroup) {
  for (const AttentionMode mode : {AttentionMode::kPerToken, AttentionMode::kExact}) {
    for (const int head_dim : {64, 128}) {
      for (const int group : {1, 2, 3, 4, 7, 8, 12}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(mode)) + " head_dim " + std::to_string(head_dim) + " group " +
                     std::to_string(group));
        AttentionShape shape = LlamaOf8B(mode, 1536);
        shape.num_heads = 2 * group;
        shape.num_kv_heads = 2;
        shape.head_dim = head_dim;
        shape.page_tokens = group % 2 == 0 ? 64 : group % 3 == 0 ? 4 : 16;
        Passes passes = DeepSteps({513, 700, 1023, 40}, 3);
        passes.push_back({{0, 9}, {2, 3}, {1, 15}});
        passes.push_back({{2, 2}, {3, 1}});
        passes.push_back({{0, 11}, {1, 11}, {2, 11}});  // more rows than the resident kernel takes
        ExpectEqual(shape, passes);
      }
    }
  }
}

TEST_P(CudaSplitAttention, SplitContextsOfEveryOperator) {
  std::vector<ScConfig> configs = {Halved(96), Halved(64), Halved(40), Halved(17), ScConfig{}};
  configs.push_back(Halved());
  configs.back().scramble_masks = 128;
  configs.push_back(Halved());
  configs.back().scramble = ScScramble::kOff;
  configs.push_back(Halved());
  configs.back().gate = ScGate::kAnd;
  configs.emplace_back().sc_prec = 6;
  for (const ScConfig& config : configs) {
    SCOPED_TRACE(Describe(config));
    AttentionShape shape = LlamaOf8B(AttentionMode::kPerToken, 1536);
    shape.num_heads = 4;
    shape.num_kv_heads = 1;
    shape.qk = shape.av = config;
    Passes passes = DeepSteps({600, 1400, 300}, 2);
    passes.push_back({{0, 11}, {1, 11}, {2, 11}});
    ExpectEqual(shape, passes);
    shape.av = Halved();
    ExpectEqual(shape, passes);
  }
}

// One long sequence among short ones, over the limits where a row's softmax becomes many blocks' work.
TEST_P(CudaSplitAttention, SplitContextsOfEveryDepth) {
  for (const AttentionMode mode : {AttentionMode::kPerToken, AttentionMode::kExact}) {
    SCOPED_TRACE(static_cast<int>(mode));
    AttentionShape shape = LlamaOf8B(mode, 20480);
    shape.num_heads = 4;
    shape.num_kv_heads = 1;
    shape.head_dim = 64;
    Passes passes = DeepSteps({20000, 300, 2046, 4095, 8191, 16384}, 4);
    for (int i = 0; i < 3; ++i) passes.push_back({{0, 6}, {1, 6}, {2, 6}, {3, 6}, {4, 6}, {5, 6}});
    const auto expected = test::RunAttention(*cpu_, shape, passes);
    EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes)), "");
    const std::string key = "depths " + std::to_string(static_cast<int>(mode)) + " ";
    EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes, key)), "");
  }
}

// One row at a time, which as many blocks as there may be share: in units of 256 positions that a block's part fills or
// not, with one tile of query heads or two, and with a window.
TEST_P(CudaSplitAttention, OneRowOfEveryDepth) {
  for (const int context : {257, 1025, 2047, 6200, 14000}) {
    for (const int group : {1, 4, 8}) {
      for (const int window : {0, 5000}) {
        SCOPED_TRACE(std::to_string(context) + " group " + std::to_string(group) + " window " + std::to_string(window));
        AttentionShape shape = LlamaOf8B(AttentionMode::kPerToken, 14336);
        shape.num_heads = group;
        shape.num_kv_heads = 1;
        shape.head_dim = group == 4 ? 128 : 64;
        shape.page_tokens = group == 4 ? 64 : 16;
        shape.window = window;
        ExpectEqual(shape, DeepSteps({context}, 2));
      }
    }
  }
}

// Rows of a batch share the GPU's blocks by their depths, whatever those of the pass before were: eager, recorded, and
// replayed for deeper ones.
TEST_P(CudaSplitAttention, BatchesOfUnequalDepths) {
  for (const int group : {1, 4, 8}) {
    SCOPED_TRACE("group " + std::to_string(group));
    AttentionShape shape = LlamaOf8B(AttentionMode::kPerToken, 6144);
    shape.num_kv_heads = 8;
    shape.num_heads = 8 * group;
    shape.head_dim = group == 8 ? 64 : 128;
    Passes passes = DeepSteps({4500, 300, 40, 1300, 2047, 3}, 3);
    for (int i = 0; i < 3; ++i) passes.push_back({{4, 1}, {2, 1}});
    passes.push_back({{5, 1200}});
    for (int i = 0; i < 3; ++i) passes.push_back({{5, 1}, {0, 1}, {1, 1}});
    passes.push_back({{3, 7}, {0, 9}});
    const auto expected = test::RunAttention(*cpu_, shape, passes);
    EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes)), "");
    const std::string key = "unequal " + std::to_string(group) + " ";
    EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes, key)), "");
  }
}

// As many rows as there are SMs for, a block each, on a GPU with 99 KB of shared memory: scores of the deeper ones go through
// memory, some of their positions at a time. So do those of look-ups beyond 8192 positions, whatever the GPU has.
TEST_P(CudaSplitAttention, ScoresThatFitNoSharedMemory) {
  const bool lookups = GetParam() == Cut::kLookups;
  test::Variables limits = Limits();
  if (!lookups) limits.emplace_back("STOCH_TEST_SHARED_BYTES", "101376");
  const auto limited = test::OpenLimited(limits);
  for (const int group : {4, 8}) {
    SCOPED_TRACE("group " + std::to_string(group));
    AttentionShape shape = LlamaOf8B(AttentionMode::kPerToken, 9000);
    shape.num_kv_heads = 8;
    shape.num_heads = 8 * group;
    shape.head_dim = lookups ? 128 : 64;
    Passes passes = DeepSteps({4300, lookups ? 8600 : 5000, 300}, 0);
    for (int i = 0; i < 2; ++i) passes.push_back({{0, 7}, {1, 7}, {2, 2}});
    passes.push_back({{0, 1}});
    EXPECT_EQ(test::Differences(test::RunAttention(*cpu_, shape, passes), test::RunAttention(*limited, shape, passes)),
              "");
  }
}

// Weights so nearly equal that blocks compute all of them to find the largest: in one block, in sixteen, of some heads.
TEST_P(CudaSplitAttention, NearlyEqualWeights) {
  for (const int group : {4, 8}) {
    for (const float gain : {0.0f, 0.05f}) {
      SCOPED_TRACE("group " + std::to_string(group) + " gain " + std::to_string(gain));
      AttentionShape shape = LlamaOf8B(AttentionMode::kPerToken, 1536);
      shape.num_kv_heads = 2;
      shape.num_heads = 2 * group;
      shape.qk_gain = gain;
      shape.period = 1;
      shape.v_drift = 0x1p-22f;
      Passes passes = DeepSteps({1300}, 2);
      passes.push_back({{0, 3}});
      ExpectEqual(shape, passes);
    }
  }
}

// From rows whose weights are nearly all large to rows with a few: p v by first words lists so many of a block, and multiplies
// whole thermometers where there are more.
TEST_P(CudaSplitAttention, ManyAndFewLargeWeights) {
  for (const int group : {3, 4}) {
    for (const float gain : {0.2f, 0.8f, 1.5f, 3.0f, 6.0f}) {
      SCOPED_TRACE("group " + std::to_string(group) + " gain " + std::to_string(gain));
      AttentionShape shape = LlamaOf8B(AttentionMode::kPerToken, 3072);
      shape.num_kv_heads = 2;
      shape.num_heads = 2 * group;
      shape.qk_gain = gain;
      ExpectEqual(shape, DeepSteps({2600}, 3));
    }
  }
}

// Exponentials down to the smallest, and a value that makes a weight of one of them: division by constants takes none below
// 2^-60, and says so.
TEST_P(CudaSplitAttention, UnlikelyPositionsWithHugeValues) {
  for (const int group : {4, 8}) {
    for (const auto& [gain, spike] : {std::pair{5.0f, 0x1p60f}, {7.0f, 0x1p70f}, {9.0f, 0x1p85f}}) {
      SCOPED_TRACE("group " + std::to_string(group) + " gain " + std::to_string(gain));
      AttentionShape shape = LlamaOf8B(AttentionMode::kPerToken, 1536);
      shape.num_kv_heads = 2;
      shape.num_heads = 2 * group;
      shape.qk_gain = gain;
      shape.v_spike = spike;
      ExpectEqual(shape, DeepSteps({1300}, 3));
    }
  }
}

// Positions before a row's window have no weight, wherever the window starts.
TEST_P(CudaSplitAttention, WindowsOfEveryMode) {
  for (const AttentionMode mode : kModes) {
    for (const int window : {1, 40, 256, 700, 4096}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(mode)) + " window " + std::to_string(window));
      AttentionShape shape;
      shape.mode = mode;
      shape.qk = shape.av = Halved();
      shape.head_dim = 64;
      shape.num_heads = 4;
      shape.max_context = 1536;
      shape.window = window;
      Passes passes = kMixed;
      passes.push_back({{0, 300}, {2, 1100}});
      for (int i = 0; i < 3; ++i) passes.push_back({{0, 1}, {1, 1}, {2, 1}});
      passes.push_back({{2, 9}});
      ExpectEqual(shape, passes);
    }
  }
}

// Contexts whose clusters are merged by a kernel, next to short ones; and a window.
TEST_P(CudaSplitAttention, DeepHalfBaselineIsClose) {
  for (const int group : {1, 4, 8}) {
    for (const int window : {0, 700}) {
      SCOPED_TRACE("group " + std::to_string(group) + " window " + std::to_string(window));
      AttentionShape shape = LlamaOf8B(AttentionMode::kExact, 5120);
      shape.num_heads = 8;
      shape.num_kv_heads = 8 / group;
      shape.window = window;
      const Passes passes = DeepSteps({5000, 100, 1100}, 3);
      const auto exact = test::RunAttention(*cpu_, shape, passes);
      shape.precision = Precision::kFp16;
      EXPECT_LT(WorstRow(exact, test::RunAttention(*cuda_, shape, passes)), 1e-2);
      const std::string key = "deep half " + std::to_string(group) + " " + std::to_string(window) + " ";
      EXPECT_LT(WorstRow(exact, test::RunAttention(*cuda_, shape, passes, key)), 1e-2);
    }
  }
}

}  // namespace
}  // namespace stoch
