// SPDX-License-Identifier: Apache-2.0
// Plans of experts over GPUs that nobody has to own: they fit the device and the scratch that was planned for them.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "kernels/plan/linear/experts.h"
#include "kernels/plan/linear/sc.h"
#include "kernels/sc/sc_config.h"
#include "tests/kernels/gpu/mixed_cases.h"
#include "tests/kernels/plan/gpu_models.h"

namespace stoch {
namespace {

ScTraits TraitsFor(int stoc_len, int64_t chunk_d) {
  ScConfig config;
  config.halve = stoc_len <= 128;
  config.stoc_len = stoc_len;
  config.chunk_d = chunk_d;
  return MakeScTraits(*MakeScOperator(config));
}

// gate and up of Qwen3-30B-A3B, then down, for `tokens` tokens.
ExpertShape GateUp(int64_t tokens) { return {tokens, 8, 128, 2048, 768, 2}; }
ExpertShape Down(int64_t tokens) { return {tokens * 8, 1, 128, 768, 2048, 1}; }

TEST(ExpertPlan, FewTokensAreLookedUpAndManyGrouped) {
  const ScTraits usual = TraitsFor(128, 128);
  for (const int64_t tokens : {1, 8, 9, 32, 64, 95}) {
    EXPECT_EQ(PlanExperts(test::H200(), usual, GateUp(tokens)).route, LinearRoute::kExpertLookup) << tokens;
    EXPECT_EQ(PlanExperts(test::H200(), usual, Down(tokens)).route, LinearRoute::kExpertLookup) << tokens;
  }
  for (const int64_t tokens : {96, 300, 2048}) {
    EXPECT_EQ(PlanExperts(test::H200(), usual, GateUp(tokens)).route, LinearRoute::kExpertGroups) << tokens;
    EXPECT_EQ(PlanExperts(test::H200(), usual, Down(tokens)).route, LinearRoute::kExpertGroups) << tokens;
  }
  EXPECT_EQ(PlanExperts(test::H200(), TraitsFor(96, 128), GateUp(2048)).route, LinearRoute::kExpertLookup);
  EXPECT_EQ(PlanExperts(test::H200(), TraitsFor(256, 128), GateUp(2048)).route, LinearRoute::kExpertLookup);
  EXPECT_EQ(PlanExperts(test::H200(), TraitsFor(128, 0), GateUp(1)).route, LinearRoute::kExpertGeneric);
  // A token: whole chunks of its row for every block, one of them staged.
  const ExpertLookupPlan one = PlanExpertLookup(test::H200(), MakeScDims(2048, 128), GateUp(1), 1);
  EXPECT_EQ(one.blocks, 128);
  EXPECT_EQ(one.staged, 1);
  EXPECT_EQ(one.places, 256);
  ExpertShape many = GateUp(1);
  many.experts = 300;
  EXPECT_EQ(PlanExpertLookup(test::H200(), MakeScDims(2048, 128), many, 1).places, 0);
}

// Rows that share scales, and rows whose lengths or channels are not their own, wait until the host has sorted them.
TEST(ExpertPlan, RowsThatDependOnOthersAreSorted) {
  ScConfig whole_call, groups;
  whole_call.granularity = ScGranularity::kPerTensor;
  groups.group_a = 4;
  for (const test::GpuModel& gpu : test::GpuModels()) {
    for (const int64_t tokens : {1, 96, 2048}) {
      for (const ScConfig& config : {whole_call, groups}) {
        const LinearSpec spec{Precision::kSc, MakeScOperator(config)};
        EXPECT_EQ(ExpertRouteText(gpu.traits, spec, GateUp(tokens)), "rows by expert, because rows share scales");
        EXPECT_EQ(ExpertRouteText(gpu.traits, spec, Down(tokens)), "rows by expert, because rows share scales");
      }
    }
  }
  LinearOperand mixed{LinearKind::kMixed};
  EXPECT_EQ(PlanExperts(test::H200(), mixed, GateUp(1)).route, LinearRoute::kExpertSorted);
  mixed.mixed.is_alone = true;
  EXPECT_EQ(PlanExperts(test::H200(), mixed, GateUp(1)).route, LinearRoute::kExpertGeneric);
  EXPECT_EQ(PlanExperts(test::H200(), mixed, GateUp(1), {.observed = true}).route, LinearRoute::kExpertSorted);
}

// Experts take by two routes the settings that mixed linears take by many.
TEST(ExpertPlan, NamesOfRoutesSayWhy) {
  std::map<std::string, std::string> texts;
  for (const test::LinearCase& c : test::LinearCases()) {
    ExpertShape shape = GateUp(32);
    shape.in_features = test::kMixedCols;
    texts[c.name] = ExpertRouteText(test::H200(), c.spec, shape);
  }
  for (const char* alone : {"rows", "pruned rows", "rows of up to 256", "l2 and sign", "chunks", "bands"}) {
    EXPECT_EQ(texts[alone], "expert-generic") << alone;
  }
  EXPECT_EQ(texts["integers"], "expert-generic, because arith=int8");
  EXPECT_EQ(texts["xnor"], "expert-generic, because gate=xnor");
  EXPECT_EQ(texts["table"], "expert-generic, because gate=table");
  EXPECT_EQ(texts["smooth"], "rows by expert, because smooth");
  EXPECT_EQ(texts["protected"], "rows by expert, because protected channels");
  EXPECT_EQ(texts["call"], "rows by expert, because lengths of a whole call");
  EXPECT_EQ(texts["groups of rows"], "rows by expert, because rows share scales");
  EXPECT_EQ(ExpertRouteText(test::H200(), {Precision::kFp32, nullptr}, GateUp(1)), "exact expert");
}

// f(x), the rows of one expert, their codes, scales and extremes, and two lists of slots.
TEST(ExpertPlan, SortedRowsFitTheirScratch) {
  ScConfig config;
  config.granularity = ScGranularity::kPerTensor;
  const LinearSpec spec{Precision::kSc, MakeScOperator(config)};
  for (const ExpertShape& shape : {GateUp(1), Down(1), GateUp(2048), Down(2048)}) {
    const ScDims dims = MakeScDims(shape.in_features, config.chunk_d);
    const int64_t of_row = 2 * shape.in_features * 4 + dims.padded + dims.chunks * (4 + 12) + 4 + 4;
    EXPECT_GE(ExpertScratchBytes(test::H200(), spec, shape.in_features, shape.rows),
              shape.rows * of_row + shape.slots() * 2 * 4);
  }
}

// Slots are combined where a launch has whole rows of them.
TEST(ExpertPlan, SlotsOfARowAreCombinedInTheLookup) {
  const ScTraits usual = TraitsFor(128, 128);
  const auto can = [&](const ExpertShape& shape, int64_t top_k) {
    return CanCombine(PlanExperts(test::H200(), usual, shape), shape, top_k);
  };
  EXPECT_TRUE(can(Down(1), 8));
  EXPECT_TRUE(can(Down(95), 8));
  EXPECT_FALSE(can(Down(96), 8));  // in tiles
  EXPECT_FALSE(can(GateUp(1), 8));
  EXPECT_TRUE(can(Down(4), 32));
  EXPECT_FALSE(can(Down(5), 40));
  ExpertPlan few = PlanExperts(test::H200(), usual, Down(1));
  few.rows_at_once = 7;
  EXPECT_FALSE(CanCombine(few, Down(1), 8));
}

TEST(ExpertPlan, OneCombinedRowIsHandedOverByWords) {
  const auto handover = [&](const ExpertShape& shape, int64_t top_k) {
    return CombinedHandover(PlanExperts(test::H200(), TraitsFor(128, 128), shape), shape, top_k);
  };
  EXPECT_EQ(handover(Down(1), 8), Handover::kWords);
  EXPECT_EQ(handover(Down(1), 4), Handover::kMemory);  // two rows of four slots
  EXPECT_EQ(handover(Down(2), 8), Handover::kMemory);
  EXPECT_EQ(handover(GateUp(1), 8), Handover::kMemory);
}

// However slots are spread, their tiles are planned: none holds slots of two experts.
TEST(ExpertPlan, TilesHoldEverySpread) {
  const ExpertPlan plan = PlanExperts(test::H200(), TraitsFor(128, 128), GateUp(2048));
  const int64_t slots = 2048 * 8;
  for (int64_t first = 0; first <= slots; first += 191) {  // one expert has `first`, the others share the rest
    int64_t tiles = (first + kPrefillTileTokens - 1) / kPrefillTileTokens;
    for (int64_t e = 0; e < 127; ++e) {
      const int64_t own = (slots - first) / 127 + (e < (slots - first) % 127 ? 1 : 0);
      tiles += (own + kPrefillTileTokens - 1) / kPrefillTileTokens;
    }
    EXPECT_LE(tiles, plan.max_tiles) << first;
  }
  EXPECT_LT(plan.max_tiles, 128 + slots / kPrefillTileTokens + 1);
}

TEST(ExpertPlan, FitsEveryGpuAndItsScratch) {
  for (const test::GpuModel& gpu : test::GpuModels()) {
    for (const int stoc_len : {64, 96, 128, 256}) {
      const ScTraits sc = TraitsFor(stoc_len, 128);
      for (const int64_t tokens : {1, 2, 5, 8, 9, 31, 32, 96, 300, 2048}) {
        for (const ExpertShape& shape : {GateUp(tokens), Down(tokens), ExpertShape{tokens, 2, 8, 72, 40, 2}}) {
          const std::string name = gpu.name + " L " + std::to_string(stoc_len) + " tokens " + std::to_string(tokens);
          const ExpertPlan plan = PlanExperts(gpu.traits, sc, shape);
          const ScDims dims = MakeScDims(shape.in_features, sc.chunk_d);
          const int64_t bytes = ExpertLaunchBytes(gpu.traits, sc, shape.in_features, shape.rows);
          if (plan.route == LinearRoute::kExpertLookup) {
            const ExpertLookupPlan cut = PlanExpertLookup(gpu.traits, dims, shape, plan.rows_at_once);
            EXPECT_LE(cut.shared_bytes, gpu.traits.max_shared_bytes) << name;
            EXPECT_LE(cut.blocks, gpu.traits.sm_count) << name;  // they wait for each other
            const int64_t row_blocks = shape.row_slots * shape.matrices * ((shape.out_features + 31) / 32);
            EXPECT_LE(plan.rows_at_once * row_blocks * dims.chunks * 32 * 4, bytes) << name;
          } else {
            ASSERT_EQ(plan.route, LinearRoute::kExpertGroups) << name;
            const StreamShape streams =
                MakeStreamShape(dims, plan.tiles_at_once * kPrefillTileTokens, kPrefillTileTokens, sc.stoc_len);
            const int64_t lists = (plan.max_tiles * (kPrefillTileTokens + 2) + 1) * 4;
            EXPECT_LE(streams.bytes() + streams.scale_count() * 4 + lists, bytes) << name;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace stoch
