// SPDX-License-Identifier: Apache-2.0
// CUDA attention gives the CPU's bits in every mode, however a prompt is cut and whatever else is in the pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/registry.h"
#include "tests/kernels/attention_scenario.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/gpu/attention_fixture.h"

namespace stoch {
namespace {

using test::AttentionShape;
using test::CudaAttention;
using test::Halved;
using test::kMixed;
using test::kModes;
using test::LlamaOf8B;
using test::Passes;
using test::Step;
using test::WorstRow;

TEST_F(CudaAttention, EveryModeAndHeadDim) {
  for (const AttentionMode mode : kModes) {
    for (const int head_dim : {8, 12, 16, 64, 128, 256}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(mode)) + " head_dim " + std::to_string(head_dim));
      AttentionShape shape;
      shape.mode = mode;
      shape.qk = shape.av = Halved();
      shape.head_dim = head_dim;
      ExpectEqual(shape, kMixed);
    }
  }
}

TEST_F(CudaAttention, EveryGroupSize) {
  for (const AttentionMode mode : kModes) {
    for (const int group : {1, 2, 4, 8}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(mode)) + " group " + std::to_string(group));
      AttentionShape shape;
      shape.mode = mode;
      shape.qk = shape.av = Halved();
      shape.head_dim = 64;
      shape.num_heads = 8;
      shape.num_kv_heads = 8 / group;
      ExpectEqual(shape, kMixed);
    }
  }
}

TEST_F(CudaAttention, EveryConfiguration) {
  std::vector<ScConfig> configs = {ScConfig{}, Halved(96), Halved(64), Halved(48), Halved(32), Halved(17)};
  for (const int prec : {3, 4, 6}) {
    configs.emplace_back().sc_prec = prec;
    configs.push_back(Halved());
    configs.back().sc_prec = prec;
  }
  configs.emplace_back().stoc_len = 200;
  configs.push_back(Halved());
  configs.back().scramble = ScScramble::kOff;
  configs.push_back(Halved());
  configs.back().scramble_masks = 128;
  configs.push_back(Halved());
  configs.back().gate = ScGate::kAnd;
  for (const AttentionMode mode : {AttentionMode::kPerToken, AttentionMode::kPerHead, AttentionMode::kPerRow}) {
    for (const ScConfig& config : configs) {
      SCOPED_TRACE(std::to_string(static_cast<int>(mode)) + " " + Describe(config));
      AttentionShape shape;
      shape.mode = mode;
      shape.qk = shape.av = config;
      shape.head_dim = 64;
      ExpectEqual(shape, kMixed);
    }
  }
  AttentionShape shape;  // qk and av may differ
  shape.qk = ScConfig{};
  shape.av = Halved(40);
  ExpectEqual(shape, kMixed);
}

TEST_F(CudaAttention, EveryPageSize) {
  for (const AttentionMode mode : kModes) {
    for (const int page_tokens : {4, 16, 32, 128}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(mode)) + " page " + std::to_string(page_tokens));
      AttentionShape shape;
      shape.mode = mode;
      shape.qk = shape.av = Halved();
      shape.head_dim = 64;
      shape.page_tokens = page_tokens;
      ExpectEqual(shape, kMixed);
    }
  }
}

TEST_F(CudaAttention, APromptMayBeCutAnywhere) {
  constexpr int kLength = 150;
  for (const AttentionMode mode : {AttentionMode::kExact, AttentionMode::kPerToken}) {
    for (const int head_dim : {16, 128}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(mode)) + " head_dim " + std::to_string(head_dim));
      AttentionShape shape;
      shape.mode = mode;
      shape.qk = shape.av = Halved();
      shape.head_dim = head_dim;
      const auto whole = test::RunAttention(*cuda_, shape, {{{0, kLength}}});
      const auto chunks = test::RunAttention(*cuda_, shape, {{{0, 63}}, {{0, 1}}, {{0, 17}}, {{0, 2}}, {{0, 67}}});
      const auto tokens = test::RunAttention(*cuda_, shape, Passes(kLength, {{0, 1}}));
      EXPECT_EQ(test::Differences(whole, chunks), "");
      EXPECT_EQ(test::Differences(whole, tokens), "");
      EXPECT_EQ(test::Differences(whole, test::RunAttention(*cpu_, shape, {{{0, kLength}}})), "");
    }
  }
}

TEST_F(CudaAttention, AReplayedGraphFollowsTheContext) {
  for (const AttentionMode mode : kModes) {
    SCOPED_TRACE(static_cast<int>(mode));
    AttentionShape shape;
    shape.mode = mode;
    shape.qk = shape.av = Halved();
    shape.head_dim = 64;
    Passes passes = {{{0, 60}, {1, 3}}};
    for (int i = 0; i < 8; ++i) passes.push_back({{0, 1}, {1, 1}});
    passes.push_back({{1, 2}});  // the same number of rows, another composition
    passes.push_back({{0, 2}});
    const std::string key = "mode " + std::to_string(static_cast<int>(mode)) + " rows ";
    EXPECT_EQ(
        test::Differences(test::RunAttention(*cpu_, shape, passes), test::RunAttention(*cuda_, shape, passes, key)),
        "");
  }
}

// Up to 256 positions are one block's, more are a cluster's, in tiles of 128: rows of a pass across the edges of both.
TEST_F(CudaAttention, RowsAcrossTheTilesOfACluster) {
  Passes passes = {{{0, 250}, {1, 380}}};
  for (int i = 0; i < 4; ++i) passes.push_back({{0, 3}, {1, 2}});
  passes.push_back({{0, 1}});
  passes.push_back({{0, 120}, {1, 124}});
  passes.push_back({{0, 8}});
  passes.push_back({{1, 5}, {0, 1}});
  passes.push_back({{1, 4}, {0, 2}, {2, 1}});
  for (const AttentionMode mode : kModes) {
    for (const ScConfig& config : {Halved(), ScConfig{}}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(mode)) + " " + Describe(config));
      AttentionShape shape;
      shape.mode = mode;
      shape.qk = shape.av = config;
      shape.head_dim = 64;
      shape.num_heads = 4;
      shape.max_context = 640;
      ExpectEqual(shape, passes);
    }
  }
}

// Scores of this many positions fit no block's shared memory.
TEST_F(CudaAttention, ContextsBeyondSharedMemory) {
  for (const AttentionMode mode : {AttentionMode::kExact, AttentionMode::kPerToken}) {
    SCOPED_TRACE(static_cast<int>(mode));
    AttentionShape shape;
    shape.mode = mode;
    shape.qk = shape.av = Halved();
    shape.head_dim = 64;
    shape.num_heads = 1;
    shape.max_context = 8704;
    ExpectEqual(shape, {{{0, 8230}}, {{0, 1}, {1, 3}}, {{0, 20}}});
  }
}

// Prompts of `context` positions, one pass each, then steps of every batch size that a row kernel of its own serves:
// three of each, so that with a graph key the first is eager, the second recorded and the third replayed.
Passes Batches(int sequences, int context, const std::vector<int>& sizes) {
  Passes passes;
  for (int i = 0; i < sequences; ++i) passes.push_back({{i, context + i % 3}});
  for (const int size : sizes) {
    for (int i = 0; i < 3; ++i) passes.push_back(Step(size));
  }
  return passes;
}

// What an 8B model runs in batches: 1 to 8 rows append for themselves, more do not; few blocks, two or four an SM.
TEST_F(CudaAttention, BatchesOfLlamaHeads) {
  for (const AttentionMode mode : {AttentionMode::kPerToken, AttentionMode::kExact}) {
    for (const int context : {300, 700}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(mode)) + " context " + std::to_string(context));
      const AttentionShape shape = LlamaOf8B(mode, 768);
      const Passes passes = Batches(32, context, {1, 5, 8, 9, 32});
      const auto expected = test::RunAttention(*cpu_, shape, passes);
      EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes)), "");
      const std::string key = "llama " + std::to_string(static_cast<int>(mode)) + " " + std::to_string(context) + " ";
      EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes, key)), "");
    }
  }
}

// The same with a limit beyond what shared memory holds: recorded graphs launch clusters and spill.
TEST_F(CudaAttention, BatchesOfLlamaHeadsWithALimitBeyondSharedMemory) {
  for (const AttentionMode mode : {AttentionMode::kPerToken, AttentionMode::kExact}) {
    SCOPED_TRACE(static_cast<int>(mode));
    const AttentionShape shape = LlamaOf8B(mode, 8704);
    const Passes passes = Batches(9, 300, {1, 5, 8, 9});
    const auto expected = test::RunAttention(*cpu_, shape, passes);
    EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes)), "");
    const std::string key = "far " + std::to_string(static_cast<int>(mode)) + " ";
    EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes, key)), "");
  }
}

// Deep contexts next to short ones.
TEST_F(CudaAttention, DeepBatchesOfLlamaHeads) {
  for (const AttentionMode mode : {AttentionMode::kPerToken, AttentionMode::kExact}) {
    SCOPED_TRACE(static_cast<int>(mode));
    const AttentionShape shape = LlamaOf8B(mode, 5120);
    Passes passes = {{{0, 2048}}, {{0, 2048}}, {{0, 904}}};
    for (int i = 1; i < 32; ++i) passes.push_back({{i, 17 + i}});
    for (const int size : {1, 5, 8, 9, 32}) {
      for (int i = 0; i < 3; ++i) passes.push_back(Step(size));
    }
    const auto expected = test::RunAttention(*cpu_, shape, passes);
    EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes)), "");
    const std::string key = "deep " + std::to_string(static_cast<int>(mode)) + " ";
    EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes, key)), "");
  }
}

// Long prompts go group by group: of several tiles, of one tile and some of its heads, and of some sequences.
TEST_F(CudaAttention, GroupsOfTilesGiveTheWholePass) {
  const Passes passes = {{{0, 300}, {1, 5}, {2, 70}}, {{2, 130}, {0, 200}, {1, 40}}, {{3, 64}, {0, 16}, {2, 1}}};
  for (const AttentionMode mode : {AttentionMode::kPerToken, AttentionMode::kPerHead, AttentionMode::kPerRow}) {
    AttentionShape shape = LlamaOf8B(mode, 576);
    shape.num_heads = 16;
    shape.num_kv_heads = 4;
    const auto expected = test::RunAttention(*cpu_, shape, passes);
    struct Limits {
      const char *score_bytes, *positions;
    };
    // A tile of 512 positions has 1 MiB of scores, a head of it 64 KiB.
    for (const Limits& limits :
         {Limits{"671088640", "131072"}, Limits{"3000000", "131072"}, Limits{"600000", "512"}, Limits{"1", "1"}}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(mode)) + " " + limits.score_bytes + " " + limits.positions);
      const auto limited = test::OpenLimited(
          {{"STOCH_TEST_SCORE_BYTES", limits.score_bytes}, {"STOCH_TEST_PACKED_POSITIONS", limits.positions}});
      EXPECT_EQ(test::Differences(expected, test::RunAttention(*limited, shape, passes)), "");
    }
  }
}

// Of prompts on Hopper; on a GPU without wgmma the same tests run other tiles.

// Tiles by wgmma: query heads that fill a block of warpgroups and that do not, both stream lengths, several ranges of
// positions, several sequences next to each other.
TEST_F(CudaAttention, WideTilesLongPrompts) {
  const Passes passes = {{{0, 700}}, {{0, 840}, {1, 600}, {2, 3}}, {{1, 77}, {0, 129}, {2, 500}}};
  struct Case {
    int heads, kv_heads, head_dim, stoc_len;
  };
  for (const Case& c :
       {Case{8, 2, 128, 0}, {4, 4, 128, 0}, {4, 2, 64, 0}, {6, 2, 64, 64}, {5, 1, 128, 64}, {8, 1, 64, 0}}) {
    SCOPED_TRACE(std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " heads of " +
                 std::to_string(c.head_dim) + ", L = " + std::to_string(c.stoc_len));
    AttentionShape shape;
    shape.qk = shape.av = Halved(c.stoc_len);
    shape.num_heads = c.heads;
    shape.num_kv_heads = c.kv_heads;
    shape.head_dim = c.head_dim;
    shape.max_context = 1700;
    ExpectEqual(shape, passes);
  }
}

// Rows whose softmax is flat, peaked, or has many equal maxima: where levels and maxima are found by other ways.
TEST_F(CudaAttention, WideTilesExtremeScores) {
  for (const float gain : {0.0f, 0.02f, 0.3f, 3.0f, 40.0f}) {
    for (const int period : {0, 1, 7}) {
      SCOPED_TRACE(std::to_string(gain) + " period " + std::to_string(period));
      AttentionShape shape;
      shape.qk = shape.av = Halved();
      shape.num_heads = 4;
      shape.head_dim = 128;
      shape.max_context = 1100;
      shape.qk_gain = gain;
      shape.period = period;
      ExpectEqual(shape, {{{0, 1030}}});
    }
  }
}

// Rows long enough to list single large probabilities: with few of them, with more than a list takes, with so many that p v
// multiplies all words of streams, and 64 positions without any.
TEST_F(CudaAttention, WideTilesListLargeProbabilities) {
  struct Case {
    int rows, head_dim, stoc_len;
    float gain;
  };
  for (const Case& c : {Case{4300, 128, 0, 0.7f},
                        {4300, 128, 0, 0.0f},
                        {4300, 64, 64, 1.0f},
                        {4300, 64, 0, 40.0f},
                        {7700, 64, 0, 0.45f},
                        {7700, 64, 0, 0.6f},
                        {7700, 64, 0, 0.8f}}) {
    SCOPED_TRACE(std::to_string(c.rows) + " of " + std::to_string(c.head_dim) + ", gain " + std::to_string(c.gain));
    AttentionShape shape;
    shape.qk = shape.av = Halved(c.stoc_len);
    shape.num_heads = 2;
    shape.num_kv_heads = 1;
    shape.head_dim = c.head_dim;
    shape.max_context = c.rows + 300;
    shape.qk_gain = c.gain;
    ExpectEqual(shape, {{{0, c.rows}}, {{0, 260}}});
  }
}

// The same where short rows list, for tools that take minutes for long ones (bench/check_gpu).
TEST_F(CudaAttention, WideTilesListInShortRows) {
  const auto listing = test::OpenLimited({{"STOCH_TEST_LIST_FROM", "1"}});
  for (const float gain : {0.0f, 0.3f, 3.0f, 40.0f}) {
    SCOPED_TRACE(gain);
    AttentionShape shape;
    shape.qk = shape.av = Halved();
    shape.num_heads = 2;
    shape.num_kv_heads = 1;
    shape.head_dim = 64;
    shape.max_context = 1200;
    shape.qk_gain = gain;
    const Passes passes = {{{0, 300}}, {{0, 800}}};
    EXPECT_EQ(test::Differences(test::RunAttention(*cpu_, shape, passes), test::RunAttention(*listing, shape, passes)),
              "");
  }
}

// Streams of some KV heads at a time, scores of some tiles.
TEST_F(CudaAttention, WideTilesRoundsOfKvHeadsGiveTheWholePass) {
  AttentionShape shape = LlamaOf8B(AttentionMode::kPerToken, 1500);
  const Passes passes = {{{0, 1100}}, {{0, 300}, {1, 90}}};
  const auto expected = test::RunAttention(*cpu_, shape, passes);
  for (const char* bytes : {"1", "5000000", "20000000"}) {
    SCOPED_TRACE(bytes);
    const auto limited = test::OpenLimited({{"STOCH_TEST_SCORE_BYTES", bytes}});
    EXPECT_EQ(test::Differences(expected, test::RunAttention(*limited, shape, passes)), "");
  }
}

TEST_F(CudaAttention, HalfBaselineIsClose) {
  for (const int head_dim : {16, 64, 128}) {
    for (const int group : {1, 4, 8}) {
      SCOPED_TRACE(std::to_string(head_dim) + " group " + std::to_string(group));
      AttentionShape shape;
      shape.mode = AttentionMode::kExact;
      shape.head_dim = head_dim;
      shape.num_heads = 8;
      shape.num_kv_heads = 8 / group;
      const auto exact = test::RunAttention(*cpu_, shape, kMixed);
      shape.precision = Precision::kFp16;
      const auto half = test::RunAttention(*cuda_, shape, kMixed);
      double error = 0;
      double norm = 0;
      for (const auto& [name, row] : exact) {
        const auto& other = half.at(name);
        for (size_t i = 0; i < row.size(); ++i) {
          error += std::pow(static_cast<double>(row[i]) - static_cast<double>(other[i]), 2);
          norm += std::pow(static_cast<double>(row[i]), 2);
        }
      }
      EXPECT_GT(norm, 0.0);
      EXPECT_LT(std::sqrt(error / norm), 2e-3);
    }
  }
}

// Passes of up to eight rows append for themselves. Contexts are short, so that a position that is missing or in a
// wrong place shows in every later row; the last ones are long enough for clusters.
TEST_F(CudaAttention, HalfBaselineAppendsSmallPasses) {
  Passes passes = {{{0, 3}, {1, 5}}, {{0, 1}, {1, 1}}, {{1, 1}}, {{2, 8}}, {{0, 4}, {1, 1}, {2, 3}}};
  for (int i = 0; i < 5; ++i) passes.push_back({{0, 1}, {1, 1}, {2, 1}});
  passes.push_back({{0, 1}, {1, 7}});
  passes.push_back({{3, 124}});
  for (int i = 0; i < 8; ++i) passes.push_back({{0, 1}, {3, 1}});
  passes.push_back({{3, 6}, {1, 2}});
  passes.push_back({{3, 1}});
  for (const int head_dim : {8, 12, 24, 64, 128, 200, 256}) {
    for (const int group : {1, 2, 4, 8}) {
      for (const int page_tokens : {4, 64}) {
        SCOPED_TRACE(std::to_string(head_dim) + " group " + std::to_string(group) + " page " +
                     std::to_string(page_tokens));
        AttentionShape shape;
        shape.mode = AttentionMode::kExact;
        shape.head_dim = head_dim;
        shape.num_heads = 8;
        shape.num_kv_heads = 8 / group;
        shape.page_tokens = page_tokens;
        const auto exact = test::RunAttention(*cpu_, shape, passes);
        shape.precision = Precision::kFp16;
        const auto half = test::RunAttention(*cuda_, shape, passes);
        EXPECT_LT(WorstRow(exact, half), 1e-2);
        const std::string key = "half " + std::to_string(head_dim) + " " + std::to_string(group) + " " +
                                std::to_string(page_tokens) + " rows ";
        EXPECT_LT(WorstRow(exact, test::RunAttention(*cuda_, shape, passes, key)), 1e-2);
      }
    }
  }
}

TEST_F(CudaAttention, ReportsNumbersThatAreNotFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Device device = cuda_->devices()[0];
    KvCacheSpec spec;
    spec.num_layers = 1;
    spec.num_kv_heads = 1;
    spec.head_dim = 16;
    spec.num_pages = 1;
    const auto cache = cuda_->MakeKvCache(device, spec);
    const auto pass = cuda_->MakePass(device, {1, 1, 1});
    const std::vector<int32_t> pages = {0};
    PassLayout layout;
    layout.ids = {0};
    layout.sequences = {{0, 1, 0, pages}};
    cuda_->UploadPass(*pass, layout);
    const std::vector<float> ones(16, 1.0f);
    std::vector<float> broken = ones;
    broken[11] = bad;
    const test::DeviceTensor rope(*cuda_, {1, 16}, ones);
    const test::DeviceTensor q(*cuda_, {1, 16}, ones);
    const test::DeviceTensor k(*cuda_, {1, 16}, ones);
    const test::DeviceTensor v(*cuda_, {1, 16}, broken);
    const test::DeviceTensor out(*cuda_, {1, 16}, ones);
    AttentionCall call;
    call.site = {5, "attention"};
    call.q = q.view();
    call.k = k.view();
    call.v = v.view();
    call.rope = rope.view();
    call.cache = cache.get();
    call.pass = pass.get();
    call.num_heads = 1;
    call.out = out.view();
    cuda_->Attention(call);
    EXPECT_THROW(cuda_->CheckFinite(device), InvalidInput);
    EXPECT_NO_THROW(cuda_->CheckFinite(device));
  }
}

}  // namespace
}  // namespace stoch
