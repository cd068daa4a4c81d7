// SPDX-License-Identifier: Apache-2.0
// Plans of SC linears over GPUs that nobody has to own: they fit the device, and an H200 gets what it always got.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "kernels/plan/linear/sc.h"
#include "kernels/sc/sc_config.h"
#include "kernels/sc/sc_parameters.h"
#include "tests/kernels/plan/gpu_models.h"

namespace stoch {
namespace {

// "halve=1,stoc_len=64"
ScTraits TraitsFor(std::string_view parameters) {
  ScConfig config;
  for (std::string_view rest = parameters; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest = one.size() < rest.size() ? rest.substr(one.size() + 1) : std::string_view();
    SetScParameter(config, std::string(one.substr(0, one.find('='))), std::string(one.substr(one.find('=') + 1)));
  }
  return MakeScTraits(*MakeScOperator(config));
}

constexpr const char* kConfigs[] = {"halve=1,chunk_d=128",
                                    "chunk_d=128",
                                    "halve=1,stoc_len=64,chunk_d=128",
                                    "halve=1,stoc_len=64,scramble=random,chunk_d=128",
                                    "halve=1,stoc_len=32,chunk_d=64",
                                    "halve=1,group_a=4,chunk_d=128",
                                    "halve=1,chunk_d=16",
                                    "halve=1,chunk_d=0",
                                    "stoc_len=200,chunk_d=128",
                                    "sc_prec=5,halve=1,chunk_d=128",
                                    "granularity=per_tensor,halve=1",
                                    "gate=xnor",
                                    "mode=unipolar"};

struct Shape {
  int64_t in_features;
  std::vector<int64_t> out_features;
};
const std::vector<Shape>& Shapes() {
  static const std::vector<Shape> shapes = {{4096, {4096, 1024, 1024}}, {4096, {14336, 14336}},   {14336, {4096}},
                                            {8192, {28672, 28672}},     {2048, {2048, 512, 512}}, {72, {40}},
                                            {256, {300, 70, 1}},        {4096, {128256}}};
  return shapes;
}

std::string Name(const test::GpuModel& gpu, const char* config, const Shape& shape, int64_t tokens) {
  return gpu.name + " '" + config + "' " + std::to_string(shape.in_features) + " x " +
         std::to_string(shape.out_features[0]) + " tokens " + std::to_string(tokens);
}

// "" where the plan fits the device and what its kernel is built for.
std::string WhatIsWrong(const GpuTraits& gpu, const ScTraits& sc, const LinearPlan& plan, int64_t tokens) {
  if (plan.shared_bytes + plan.static_bytes > gpu.max_shared_bytes) return "more shared memory than there is";
  if (plan.shared_bytes < 0 || plan.quantize_bytes <= 0 || plan.launch_bytes < 0) return "negative sizes";
  const bool waits = plan.route == LinearRoute::kScDecode || plan.route == LinearRoute::kScFew ||
                     plan.route == LinearRoute::kScTable || plan.route == LinearRoute::kScBatch ||
                     plan.route == LinearRoute::kScTilesSplit;
  // Blocks that wait for each other have to be on the GPU together.
  if (waits && (plan.blocks < 1 || plan.blocks > gpu.sm_count)) return "blocks that are not resident";
  switch (plan.route) {
    case LinearRoute::kScDecode: return tokens > 2 * plan.tile_tokens || tokens > 8 || !sc.has_bytes ? "decode" : "";
    case LinearRoute::kScFew:
      if (tokens > plan.tile_tokens && (gpu.has_binary_mma || plan.quantizer != ScQuantizer::kKernel)) return "few";
      return !sc.has_quarters ? "few" : "";
    case LinearRoute::kScTable:
      if (tokens > plan.tile_tokens && (gpu.has_wgmma || plan.quantizer != ScQuantizer::kKernel)) return "table";
      return !sc.has_residuals || (plan.sums == BitProducts::kBinary) != gpu.has_binary_mma ? "table" : "";
    case LinearRoute::kScBatch:
      return !gpu.has_wgmma || plan.stages < 2 || tokens > 256 || plan.shares.owners > plan.blocks ? "batch wgmma" : "";
    case LinearRoute::kScPrompt: return !gpu.has_wgmma || plan.stages < 2 || !sc.has_streams ? "prefill wgmma" : "";
    case LinearRoute::kScTiles: return !sc.has_streams || plan.stages < 3 ? "tiles" : "";
    case LinearRoute::kScTilesSplit:
      return !sc.has_streams || plan.stages < 3 || tokens > 256 || plan.shared_bytes < kTileCombineBytes ? "split tiles"
                                                                                                         : "";
    case LinearRoute::kScGeneric: return sc.code == ScCode::kSignMagnitude && sc.has_streams ? "generic" : "";
    default: return "not a route of one SC operator";
  }
}

TEST(ScLinearPlan, FitsEveryGpuForEveryNumberOfTokens) {
  int64_t plans = 0;
  for (const char* config : kConfigs) {
    const ScTraits sc = TraitsFor(config);
    for (const test::GpuModel& gpu : test::GpuModels()) {
      for (const Shape& shape : Shapes()) {
        const int64_t bound = ScLinearScratchBytes(gpu.traits, sc, shape.in_features, shape.out_features, 2048);
        for (int64_t tokens = 1; tokens <= 2048; ++tokens) {
          const LinearPlan plan = PlanScLinear(gpu.traits, sc, {tokens, shape.in_features, shape.out_features});
          ASSERT_EQ(WhatIsWrong(gpu.traits, sc, plan, tokens), "") << Name(gpu, config, shape, tokens);
          ASSERT_LE(plan.scratch_bytes(), bound) << Name(gpu, config, shape, tokens);
          ++plans;
        }
      }
    }
  }
  EXPECT_EQ(plans, 13 * 14 * 8 * 2048);
}

TEST(ScLinearPlan, ScratchNeverShrinksWithTheLimit) {
  const ScTraits sc = TraitsFor("halve=1,chunk_d=128");
  for (const test::GpuModel& gpu : test::GpuModels()) {
    for (const Shape& shape : Shapes()) {
      int64_t last = 0;
      for (const int64_t tokens : {1, 2, 4, 5, 8, 16, 17, 64, 96, 97, 128, 192, 256, 257, 300, 512, 2048, 65536}) {
        const int64_t bytes = ScLinearScratchBytes(gpu.traits, sc, shape.in_features, shape.out_features, tokens);
        EXPECT_GE(bytes, last) << gpu.name << " " << tokens;
        last = bytes;
      }
    }
  }
}

// What an H200 ran before there were plans: thresholds are measured, and a change has to be meant. Taken from the
// launchers of commit 17141c2.
struct Golden {
  int64_t tokens;
  LinearRoute route;
  int tile_tokens, stages, blocks, owners, helped;
  int64_t shared_bytes;
};

void ExpectGolden(const char* config, const Shape& shape, const std::vector<Golden>& rows) {
  const ScTraits sc = TraitsFor(config);
  for (const Golden& row : rows) {
    const LinearPlan plan = PlanScLinear(test::H200(), sc, {row.tokens, shape.in_features, shape.out_features});
    SCOPED_TRACE(std::string(config) + ", " + std::to_string(row.tokens) + " tokens");
    EXPECT_EQ(LinearRouteName(plan.route), LinearRouteName(row.route));
    EXPECT_EQ(plan.tile_tokens, row.tile_tokens);
    EXPECT_EQ(plan.stages, row.stages);
    EXPECT_EQ(plan.blocks, row.blocks);
    EXPECT_EQ(plan.shares.owners, row.owners);
    EXPECT_EQ(plan.shares.helped, row.helped);
    EXPECT_EQ(plan.shared_bytes, row.shared_bytes);
  }
}

TEST(ScLinearPlan, AnH200RunsQkvOf8B) {
  ExpectGolden(
      "halve=1,chunk_d=128", {4096, {4096, 1024, 1024}},
      {{1, LinearRoute::kScDecode, 1, 0, 128, 0, 0, 17800},    {2, LinearRoute::kScFew, 4, 4, 128, 0, 0, 196608},
       {4, LinearRoute::kScFew, 4, 4, 128, 0, 0, 196608},      {5, LinearRoute::kScTable, 8, 4, 128, 0, 0, 196608},
       {8, LinearRoute::kScTable, 8, 4, 128, 0, 0, 196608},    {9, LinearRoute::kScTable, 16, 2, 128, 0, 0, 163840},
       {16, LinearRoute::kScTable, 16, 2, 128, 0, 0, 163840},  {17, LinearRoute::kScBatch, 24, 7, 132, 0, 0, 226560},
       {24, LinearRoute::kScBatch, 24, 7, 132, 0, 0, 226560},  {25, LinearRoute::kScBatch, 32, 5, 132, 0, 0, 217344},
       {32, LinearRoute::kScBatch, 32, 5, 132, 0, 0, 217344},  {33, LinearRoute::kScBatch, 48, 7, 132, 0, 0, 226560},
       {48, LinearRoute::kScBatch, 48, 7, 132, 0, 0, 226560},  {49, LinearRoute::kScBatch, 64, 5, 132, 0, 0, 217344},
       {64, LinearRoute::kScBatch, 64, 5, 132, 0, 0, 217344},  {65, LinearRoute::kScBatch, 96, 3, 132, 0, 0, 198912},
       {96, LinearRoute::kScBatch, 96, 3, 132, 0, 0, 198912},  {97, LinearRoute::kScBatch, 64, 5, 132, 0, 0, 217344},
       {128, LinearRoute::kScBatch, 64, 5, 132, 0, 0, 217344}, {129, LinearRoute::kScBatch, 48, 7, 132, 0, 0, 226560},
       {192, LinearRoute::kScBatch, 64, 5, 132, 0, 0, 217344}, {256, LinearRoute::kScBatch, 64, 5, 132, 96, 8, 217344},
       {257, LinearRoute::kScPrompt, 192, 4, 0, 0, 0, 226560}, {512, LinearRoute::kScPrompt, 192, 4, 0, 0, 0, 226560},
       {2048, LinearRoute::kScPrompt, 192, 4, 0, 0, 0, 226560}});
}

TEST(ScLinearPlan, AnH200RunsGateUpOf8B) {
  ExpectGolden("halve=1,chunk_d=128", {4096, {14336, 14336}},
               {{1, LinearRoute::kScDecode, 1, 0, 128, 0, 0, 17800},
                {2, LinearRoute::kScFew, 4, 4, 128, 0, 0, 196608},
                {4, LinearRoute::kScFew, 4, 4, 128, 0, 0, 196608},
                {5, LinearRoute::kScTable, 8, 4, 128, 0, 0, 196608},
                {8, LinearRoute::kScTable, 8, 4, 128, 0, 0, 196608},
                {9, LinearRoute::kScTable, 16, 2, 128, 0, 0, 163840},
                {16, LinearRoute::kScTable, 16, 2, 128, 0, 0, 163840},
                {17, LinearRoute::kScBatch, 24, 7, 132, 112, 4, 226560},
                {32, LinearRoute::kScBatch, 32, 5, 132, 112, 4, 217344},
                {33, LinearRoute::kScBatch, 48, 7, 132, 112, 4, 226560},
                {96, LinearRoute::kScBatch, 96, 3, 132, 0, 0, 198912},
                {97, LinearRoute::kScBatch, 64, 5, 132, 112, 4, 217344},
                {256, LinearRoute::kScBatch, 64, 5, 132, 112, 4, 217344},
                {257, LinearRoute::kScPrompt, 192, 4, 0, 0, 0, 226560},
                {2048, LinearRoute::kScPrompt, 192, 4, 0, 0, 0, 226560}});
}

TEST(ScLinearPlan, AnH200RunsDownOf8B) {
  ExpectGolden("halve=1,chunk_d=128", {14336, {4096}},
               {{1, LinearRoute::kScDecode, 1, 0, 132, 0, 0, 34320},
                {2, LinearRoute::kScFew, 4, 4, 112, 0, 0, 196608},
                {4, LinearRoute::kScFew, 4, 4, 112, 0, 0, 196608},
                {5, LinearRoute::kScTable, 8, 4, 112, 0, 0, 196608},
                {8, LinearRoute::kScTable, 8, 4, 112, 0, 0, 196608},
                {9, LinearRoute::kScTable, 16, 2, 112, 0, 0, 163840},
                {16, LinearRoute::kScTable, 16, 2, 112, 0, 0, 163840},
                {17, LinearRoute::kScBatch, 24, 7, 132, 0, 0, 226560},
                {32, LinearRoute::kScBatch, 32, 5, 132, 0, 0, 217344},
                {33, LinearRoute::kScBatch, 48, 7, 132, 0, 0, 226560},
                {96, LinearRoute::kScBatch, 96, 3, 132, 0, 0, 198912},
                {97, LinearRoute::kScBatch, 64, 5, 132, 0, 0, 217344},
                {256, LinearRoute::kScBatch, 64, 5, 132, 0, 0, 217344},
                {257, LinearRoute::kScPrompt, 192, 4, 0, 0, 0, 226560},
                {2048, LinearRoute::kScPrompt, 192, 4, 0, 0, 0, 226560}});
}

TEST(ScLinearPlan, AnH200RunsFullLength) {
  ExpectGolden("chunk_d=128", {4096, {4096, 1024, 1024}},
               {{1, LinearRoute::kScDecode, 1, 0, 128, 0, 0, 17800},
                {2, LinearRoute::kScDecode, 2, 0, 128, 0, 0, 33040},
                {4, LinearRoute::kScDecode, 4, 0, 128, 0, 0, 66080},
                {5, LinearRoute::kScBatch, 16, 12, 132, 0, 0, 225536},
                {8, LinearRoute::kScBatch, 16, 12, 132, 0, 0, 225536},
                {9, LinearRoute::kScBatch, 16, 12, 132, 0, 0, 225536},
                {16, LinearRoute::kScBatch, 16, 12, 132, 0, 0, 225536},
                {17, LinearRoute::kScBatch, 32, 6, 132, 0, 0, 225536},
                {32, LinearRoute::kScBatch, 32, 6, 132, 0, 0, 225536},
                {33, LinearRoute::kScBatch, 64, 6, 132, 0, 0, 225536},
                {64, LinearRoute::kScBatch, 64, 6, 132, 0, 0, 225536},
                {65, LinearRoute::kScBatch, 64, 6, 132, 0, 0, 225536},
                {256, LinearRoute::kScBatch, 64, 6, 132, 0, 0, 225536},
                {257, LinearRoute::kScPrompt, 192, 4, 0, 0, 0, 230656},
                {2048, LinearRoute::kScPrompt, 192, 4, 0, 0, 0, 230656}});
}

TEST(ScLinearPlan, OneRowIsHandedOverByWords) {
  const std::vector<int64_t> outs = {4096};
  const auto handover = [&](const char* config, int64_t tokens) {
    return PlanScLinear(test::H200(), TraitsFor(config), {tokens, 4096, outs}).handover;
  };
  EXPECT_EQ(handover("halve=1,chunk_d=128", 1), Handover::kWords);
  EXPECT_EQ(handover("halve=1,chunk_d=128", 2), Handover::kMemory);
  EXPECT_EQ(handover("halve=1,chunk_d=128,group_a=2", 1), Handover::kMemory);  // another kernel quantizes
  EXPECT_EQ(handover("halve=1,chunk_d=0", 1), Handover::kMemory);              // not kScDecode
}

TEST(ScLinearPlan, SmallSharedMemoryTakesSmallTables) {
  const ScTraits sc = TraitsFor("halve=1,chunk_d=128");
  const GpuTraits rtx = test::TraitsOf(89, 128, 99, 89);
  const Shape shape{4096, {4096}};
  const auto plan = [&](int64_t tokens) {
    return PlanScLinear(rtx, sc, {tokens, shape.in_features, shape.out_features});
  };
  EXPECT_EQ(plan(1).route, LinearRoute::kScDecode);
  for (const int64_t tokens : {2, 4}) EXPECT_EQ(plan(tokens).route, LinearRoute::kScFew);
  for (const int64_t tokens : {5, 8}) {
    EXPECT_EQ(plan(tokens).route, LinearRoute::kScTable);
    EXPECT_EQ(plan(tokens).tile_tokens, 8);
    EXPECT_EQ(plan(tokens).shared_bytes, 96 << 10);
  }
  // Two launches of tables beat a tile.
  for (const int64_t tokens : {9, 16}) {
    EXPECT_EQ(plan(tokens).route, LinearRoute::kScTable);
    EXPECT_EQ(plan(tokens).tile_tokens, 8);
  }
  EXPECT_EQ(plan(17).route, LinearRoute::kScTilesSplit);
  EXPECT_EQ(plan(17).tile_tokens, 32);
  EXPECT_EQ(plan(33).tile_tokens, 64);
  EXPECT_EQ(plan(2048).route, LinearRoute::kScTiles);
  EXPECT_EQ(plan(2048).stages, kTileFormStages);
  // Short streams are fewer bits than the closed form, other sources have none.
  for (const char* config : {"halve=1,chunk_d=128,stoc_len=64", "halve=1,chunk_d=128,source=vdc"}) {
    EXPECT_EQ(TileFormOf(rtx, TraitsFor(config)), TileForm::kStreams) << config;
  }
  EXPECT_EQ(TileFormOf(rtx, sc), TileForm::kClosed);
}

TEST(ScLinearPlan, TilesWithoutBinaryMmaAreInt8Alone) {
  const ScTraits sc = TraitsFor("halve=1,chunk_d=128");
  const GpuTraits rtx = test::TraitsOf(120, 170, 99, 120);
  const Shape shape{4096, {4096}};
  for (const auto& [tokens, route, tile] : {std::tuple{32, LinearRoute::kScTilesSplit, 32},
                                            {64, LinearRoute::kScTilesSplit, 64},
                                            {2048, LinearRoute::kScTiles, 64}}) {
    const LinearPlan plan = PlanScLinear(rtx, sc, {tokens, shape.in_features, shape.out_features});
    EXPECT_EQ(plan.route, route) << tokens;
    EXPECT_EQ(plan.tile_tokens, tile) << tokens;
    EXPECT_EQ(plan.tile_form, TileForm::kInt8) << tokens;
    EXPECT_EQ(plan.stages, kTileInt8Stages) << tokens;
    EXPECT_LE(plan.shared_bytes, 99 << 10) << tokens;
  }
  // Tables of few tokens are summed by int8 products, too.
  for (const int64_t tokens : {2, 5, 16, 24, 48}) {
    const LinearPlan plan = PlanScLinear(rtx, sc, {tokens, shape.in_features, shape.out_features});
    EXPECT_EQ(plan.route, tokens > 4 ? LinearRoute::kScTable : LinearRoute::kScFew) << tokens;
    EXPECT_EQ(plan.tile_tokens, tokens > 4 ? 8 : 4) << tokens;
    EXPECT_EQ(plan.sums == BitProducts::kInt8, tokens > 4) << tokens;
  }
  // People see it.
  LinearSpec spec;
  spec.precision = Precision::kSc;
  ScConfig config;
  SetScParameter(config, "halve", "1");
  SetScParameter(config, "chunk_d", "128");
  spec.sc = MakeScOperator(config);
  EXPECT_EQ(LinearRouteText(rtx, spec, {2048, shape.in_features, shape.out_features}), "tiles x64 (closed form, int8)");
  EXPECT_EQ(LinearRouteText(test::TraitsOf(89, 128, 99, 89), spec, {32, shape.in_features, shape.out_features}),
            "tiles-split x32 (closed form)");
  // Bits of other sources are emulated.
  EXPECT_EQ(TileFormOf(rtx, TraitsFor("halve=1,chunk_d=128,source=vdc")), TileForm::kStreams);
}

}  // namespace
}  // namespace stoch
