// SPDX-License-Identifier: Apache-2.0
// Routes of linears of several stream lengths, on GPUs that need not be there.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "kernels/plan/linear/mixed.h"
#include "tests/kernels/gpu/mixed_cases.h"
#include "tests/kernels/plan/gpu_models.h"

namespace stoch::test {
namespace {

constexpr std::array<int64_t, 1> kOut = {70};

std::string NameOf(std::optional<LinearRoute> route) {
  return route ? std::string(LinearRouteName(*route)) : std::string();
}

TEST(MixedPlan, RoutesFollowFromWhatAGpuHas) {
  for (const LinearCase& c : LinearCases()) {
    if (!NeedsMixed(c.spec)) continue;
    const MixedTraits weight = MakeMixedTraits(c.spec, kMixedCols);
    const ExpectedRoutes expected(c);
    for (const GpuModel& gpu : GpuModels()) {
      for (const int64_t rows : {1, 2, 4, 5, 16, 17, 32, 33, 40, 128, 129, 200}) {
        const LinearPlan plan = PlanMixedLinear(gpu.traits, weight, {rows, kMixedCols, kOut}, {});
        const bool is_fast = IsMixedStep(plan.route) || IsMixedPrompt(plan.route);
        EXPECT_EQ(is_fast ? LinearRouteName(plan.route) : "", NameOf(expected.At(gpu.traits, rows)))
            << gpu.name << ", " << c.name << ", rows " << rows;
        EXPECT_LE(plan.shared_bytes + plan.static_bytes, gpu.traits.max_shared_bytes) << gpu.name << ", " << c.name;
      }
    }
  }
}

// Launches of a step cover its rows, each by a route that takes every weight, and leave none to a prompt.
TEST(MixedPlan, StepsCoverEveryRow) {
  std::vector<MixedTraits> all;
  for (const LinearCase& c : LinearCases()) {
    if (c.decodes) all.push_back(MakeMixedTraits(c.spec, kMixedCols));
  }
  ASSERT_GE(all.size(), 5u);
  for (const GpuModel& gpu : GpuModels()) {
    for (size_t i = 0; i + 1 < all.size(); ++i) {
      const std::vector<MixedTraits> pair = {all[i], all[i + 1]};
      for (int64_t rows = 1; rows <= 128; ++rows) {
        int64_t done = 0;
        for (int launches = 0; done < rows && launches < 128; ++launches) {
          const LinearPlan plan = PlanMixedStep(gpu.traits, pair, {rows, kMixedCols, kOut}, done, {});
          ASSERT_TRUE(IsMixedStep(plan.route)) << gpu.name;
          ASSERT_GE(plan.tile_tokens, 1) << gpu.name;
          done += plan.tile_tokens;
        }
        ASSERT_GE(done, rows) << gpu.name;
      }
    }
  }
}

// SiLU of a whole row is too much for every block; of a chunk it is not, and an observer reads slots from memory.
TEST(MixedPlan, OneRowFindsItsOwnSlots) {
  LinearCase rows, chunks;
  for (const LinearCase& c : LinearCases()) {
    if (c.name == std::string("rows")) rows = c;
    if (c.name == std::string("chunks")) chunks = c;
  }
  const auto quantizer = [](const LinearCase& c, const LinearPass& pass) {
    return PlanMixedLinear(H200(), MakeMixedTraits(c.spec, kMixedCols), {1, kMixedCols, kOut}, pass).quantizer;
  };
  EXPECT_EQ(quantizer(rows, {}), ScQuantizer::kKernel);
  EXPECT_EQ(quantizer(rows, {.prologue = Prologue::kSiluMul}), ScQuantizer::kByRow);
  EXPECT_EQ(quantizer(rows, {.observed = true}), ScQuantizer::kByRow);
  EXPECT_EQ(quantizer(chunks, {.prologue = Prologue::kSiluMul}), ScQuantizer::kKernel);
}

TEST(MixedPlan, PromptsByTheirLengths) {
  const auto text = [](const char* name, int64_t rows) {
    for (const LinearCase& c : LinearCases()) {
      if (c.name == std::string(name)) return LinearRouteText(H200(), c.spec, {rows, kMixedCols, kOut});
    }
    return std::string();
  };
  EXPECT_EQ(text("rows", 200), "mixed prefill-wgmma x192");
  EXPECT_EQ(text("rows", 384), "mixed prefill-wgmma by group x192");
  EXPECT_EQ(text("chunks", 384), "mixed prefill-wgmma x192");
  EXPECT_EQ(text("rows", 10), "mixed table x10");
  EXPECT_EQ(text("rows", 20), "mixed batch-wgmma x20");
  EXPECT_EQ(text("call", 200), "rows by length, each batch-wgmma x64");
  EXPECT_EQ(text("call", 8), "mixed generic, because lengths of a whole call");
  EXPECT_EQ(text("integers", 200), "mixed generic, because arith=int2");
  EXPECT_EQ(text("smooth", 8), "mixed generic, because smooth");
  EXPECT_EQ(text("protected", 8), "mixed generic, because protected channels");
}

// Formats of numbers have the plain product, with a scale for each block of MXINT8.
TEST(MixedPlan, FormatsOfNumbers) {
  ScConfig config;
  const auto spec = [&](ScArith arith) {
    config.arith = arith;
    return LinearSpec{Precision::kSc, MakeScOperator(config)};
  };
  const LinearSpec e4m3 = spec(ScArith::kFp8E4m3), mx = spec(ScArith::kMxInt8);
  for (const GpuModel& gpu : GpuModels()) {
    for (const int64_t rows : {1, 16, 200}) {
      EXPECT_EQ(LinearRouteText(gpu.traits, e4m3, {rows, 4096, kOut}), "mixed generic, because arith=fp8_e4m3")
          << gpu.name;
      EXPECT_EQ(LinearRouteText(gpu.traits, mx, {rows, 4096, kOut}), "mixed generic, because arith=mxint8") << gpu.name;
    }
    const int64_t more_scales = 200 * (4096 / 32 - 4096 / 128) * 4;
    EXPECT_GE(LinearScratchBytes(gpu.traits, mx, {200, 4096, kOut}),
              LinearScratchBytes(gpu.traits, e4m3, {200, 4096, kOut}) + more_scales);
  }
}

// A recorded prompt waits for nothing.
TEST(MixedPlan, RecordedRowsAreNotSorted) {
  for (const LinearCase& c : LinearCases()) {
    if (c.name != std::string("call")) continue;
    const MixedTraits weight = MakeMixedTraits(c.spec, kMixedCols);
    EXPECT_EQ(PlanMixedRows(weight, 32, {}), LinearRoute::kMixedSorted);
    EXPECT_EQ(PlanMixedRows(weight, 31, {}), LinearRoute::kMixedGeneric);
    EXPECT_EQ(PlanMixedRows(weight, 32, {.recorded = true}), LinearRoute::kMixedGeneric);
  }
}

// Few, long rows take clusters of blocks; where a rule needs the norm of a row, one block sees all of it.
TEST(MixedPlan, RowsAreSharedByBlocks) {
  const auto ranks = [](const GpuTraits& gpu, int64_t cols, int64_t tokens, bool needs_norm) {
    return PlanPrepare(gpu, MakeScDims(cols, 128), tokens, needs_norm).ranks;
  };
  EXPECT_EQ(ranks(H200(), 4096, 1, false), 1);  // a warp for each of 32 chunks
  EXPECT_EQ(ranks(H200(), 4097, 1, false), 4);
  EXPECT_EQ(ranks(H200(), 8192, 32, false), 4);
  EXPECT_EQ(ranks(H200(), 14336, 1, false), 8);
  EXPECT_EQ(ranks(H200(), 14336, 33, false), 1);  // rows fill the GPU
  EXPECT_EQ(ranks(H200(), 14336, 1, true), 1);
  for (const GpuModel& gpu : GpuModels()) {
    for (const int64_t cols : {16, 300, 4096, 14336, 16384}) {
      const ScDims dims = MakeScDims(cols, 128);
      const PreparePlan plan = PlanPrepare(gpu.traits, dims, 8, false);
      EXPECT_TRUE(gpu.traits.has_clusters || plan.ranks == 1) << gpu.name;
      EXPECT_GE(plan.ranks * plan.rank_chunks, dims.chunks) << gpu.name << ", " << cols;
      EXPECT_GE(plan.shared_bytes, std::min(cols, plan.rank_chunks * 128) * 4) << gpu.name << ", " << cols;
      EXPECT_LE(plan.shared_bytes + kMixedPrepareStaticBytes, gpu.traits.max_shared_bytes) << gpu.name << ", " << cols;
    }
  }
}

}  // namespace
}  // namespace stoch::test
