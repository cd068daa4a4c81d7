// SPDX-License-Identifier: Apache-2.0
// Prompts behind a sliding window go through the kernels for tiles and give the CPU's bits, however they are cut.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cuda/runtime/gpu_probe.h"
#include "kernels/plan/attention/plan.h"
#include "tests/kernels/attention_scenario.h"
#include "tests/kernels/gpu/attention_fixture.h"

namespace stoch {
namespace {

using test::AttentionShape;
using test::Halved;
using test::kModes;
using test::LlamaOf8B;
using test::Passes;
using test::WorstRow;

// On wgmma, and as on a GPU without it; with room for the scores of few tiles at a time.
class CudaWindowAttention : public test::CudaAttention, public testing::WithParamInterface<bool> {
 protected:
  test::Variables Limits() const override {
    test::Variables limits{{"STOCH_TEST_SCORE_BYTES", "3000000"}};
    if (!GetParam()) limits.emplace_back("STOCH_TEST_NO_WGMMA", "1");
    return limits;
  }
  void SetUp() override {
    CudaAttention::SetUp();
    const test::ScopedVariables set(Limits());
    if (!IsSkipped()) traits_ = cuda::ProbeGpu(0);
  }
  // The route of prompts over such a cache.
  AttentionRoute PromptRoute(const AttentionShape& shape) const {
    KvCacheSpec spec;
    spec.mode = shape.mode;
    spec.precision = shape.precision;
    spec.num_kv_heads = shape.num_kv_heads;
    spec.head_dim = shape.head_dim;
    spec.qk = MakeScOperator(shape.qk);
    spec.av = MakeScOperator(shape.av);
    const AttentionLayers layers = MakeAttentionLayers(spec, shape.num_heads);
    const AttentionLimits limits{2048, 8, 2048};
    return PlanAttention(traits_, layers.at(0), limits, AttentionPass::Prompt(600, 2000)).long_rows;
  }
  GpuTraits traits_;
};
INSTANTIATE_TEST_SUITE_P(Wgmma, CudaWindowAttention, testing::Bool());

// A prompt in pieces, the later ones behind more than a window; several sequences in a pass, and steps in between.
const Passes kPieces = {{{0, 900}},        {{0, 1}},   {{0, 70}, {1, 333}}, {{0, 500}},
                        {{1, 17}, {0, 1}}, {{1, 700}}, {{0, 1}, {1, 1}}};

TEST_P(CudaWindowAttention, PromptsOfEveryGroup) {
  for (const int head_dim : {64, 128}) {
    for (const int group : {1, 2, 4, 6}) {
      for (const int window : {1, 63, 64, 65, 256, 300, 777, 5000}) {
        AttentionShape shape = LlamaOf8B(AttentionMode::kPerToken, 2048);
        shape.num_heads = 2 * group;
        shape.num_kv_heads = 2;
        shape.head_dim = head_dim;
        shape.window = window;
        SCOPED_TRACE("head_dim " + std::to_string(head_dim) + " group " + std::to_string(group) + " window " +
                     std::to_string(window));
        // 99 KB of shared memory hold no ring for wgmma.
        const bool wide = traits_.has_wgmma && traits_.max_shared_bytes > (160 << 10);
        EXPECT_EQ(PromptRoute(shape), wide ? AttentionRoute::kScWide : AttentionRoute::kScTiles);
        ExpectEqual(shape, kPieces);
      }
    }
  }
}

TEST_P(CudaWindowAttention, PromptsOfEveryModeAndOperator) {
  for (const AttentionMode mode : kModes) {
    for (const ScConfig& config : {Halved(), Halved(64), Halved(96), ScConfig{}}) {
      AttentionShape shape = LlamaOf8B(mode, 2048);
      shape.num_heads = 4;
      shape.num_kv_heads = 1;
      shape.head_dim = 64;
      shape.qk = shape.av = config;
      shape.window = 290;
      SCOPED_TRACE(std::to_string(static_cast<int>(mode)) + " " + Describe(config));
      ExpectEqual(shape, kPieces);
      shape.page_tokens = 16;
      shape.qk_gain = 60;  // few positions carry a row's weight: leaving one out shows
      ExpectEqual(shape, kPieces);
    }
  }
}

TEST_P(CudaWindowAttention, HalfBaselineIsClose) {
  for (const int head_dim : {64, 128}) {
    for (const int window : {1, 64, 290, 3000}) {
      SCOPED_TRACE("head_dim " + std::to_string(head_dim) + " window " + std::to_string(window));
      AttentionShape shape = LlamaOf8B(AttentionMode::kExact, 2048);
      shape.num_heads = 4;
      shape.num_kv_heads = 2;
      shape.head_dim = head_dim;
      shape.window = window;
      const auto exact = test::RunAttention(*cpu_, shape, kPieces);
      shape.precision = Precision::kFp16;
      EXPECT_EQ(PromptRoute(shape), AttentionRoute::kHalfTiles);
      EXPECT_LT(WorstRow(exact, test::RunAttention(*cuda_, shape, kPieces)), 1e-2);
    }
  }
}

}  // namespace
}  // namespace stoch
