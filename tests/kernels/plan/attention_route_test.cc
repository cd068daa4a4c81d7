// SPDX-License-Identifier: Apache-2.0
// Routes of attention over GPUs of every compute capability, and the values that come with them.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/plan/attention/ring.h"
#include "kernels/plan/attention/route.h"
#include "tests/kernels/plan/attention_shapes.h"
#include "tests/kernels/plan/gpu_models.h"

namespace stoch {
namespace {

using test::Halved;
using test::Plan;
using test::Shape;
using Route = AttentionRoute;

constexpr AttentionUse kRecorded = AttentionUse::kRecorded;

// Llama 3 8B in SC, with streams that wide tiles take.
AttentionShape Llama() {
  AttentionShape shape = Shape(32, 8, 128, Halved());
  shape.swapped = true;
  return shape;
}

AttentionShape Exact(Precision precision) {
  AttentionShape shape = Shape(32, 8, 128, {}, AttentionMode::kExact);
  shape.precision = precision;
  return shape;
}

// `stoch inspect` of Llama 3 8B: steps of one sequence, of eight and of 64, and a prompt.
TEST(AttentionRoute, OfEveryGpu) {
  const std::string resident = "rows fresh, split-resident beyond 256";
  const std::string lookup1 = resident + ", split-lookup beyond 10240";
  const std::string lookup8 = resident + ", split-lookup beyond 1024";
  // Scores of the deepest contexts fill the scratch of sixteen rows, which one launch takes.
  const std::string split = "rows, split beyond 6144";
  const std::string split_resident = split + ", split-resident beyond 32768";
  const std::string split_lookup = split + ", split-lookup beyond 32768";
  struct Row {
    std::string one, eight, many, prompt;
  };
  const std::map<std::string, Row> rows = {
      {"A100", {resident, resident, split, "tiles"}},
      {"RTX 3090", {resident, resident, split, "tiles"}},
      {"RTX 3090 native", {resident, resident, split, "tiles"}},
      {"RTX 4090", {resident, resident, split_resident, "tiles"}},
      {"L4", {resident, "rows fresh, split beyond 6144", split, "tiles"}},  // 58 SMs for eight rows of eight KV heads
      {"H200", {lookup1, lookup8, split_lookup, "wide-tiles"}},
      {"H200 from PTX", {lookup1, lookup8, split_lookup, "tiles"}},
      {"B200", {lookup1, lookup8, split_lookup, "tiles"}},
      {"B200 from PTX", {lookup1, lookup8, split_lookup, "tiles"}},
      {"RTX 5090", {resident, resident, split_resident, "tiles"}},
      {"RTX 5090 from PTX", {resident, resident, split_resident, "tiles"}},
      {"H200 with 99 KB", {resident, resident, split_resident, "tiles"}},
      {"H200 without wgmma", {lookup1, lookup8, split_lookup, "tiles"}},
      {"H200 without binary MMA", {lookup1, lookup8, split_lookup, "tiles"}}};
  for (const test::GpuModel& gpu : test::GpuModels()) {
    SCOPED_TRACE(gpu.name);
    ASSERT_TRUE(rows.contains(gpu.name));
    const Row& row = rows.at(gpu.name);
    EXPECT_EQ(AttentionRoutes(gpu.traits, Llama(), 1, false), row.one);
    EXPECT_EQ(AttentionRoutes(gpu.traits, Llama(), 8, false), row.eight);
    EXPECT_EQ(AttentionRoutes(gpu.traits, Llama(), 64, false), row.many);
    EXPECT_EQ(AttentionRoutes(gpu.traits, Llama(), 2048, true), row.prompt);
    AttentionShape dilated = Llama();
    dilated.dilated = true;
    EXPECT_EQ(AttentionRoutes(gpu.traits, dilated, 1, false), "plain-rows");
    EXPECT_EQ(AttentionRoutes(gpu.traits, dilated, 2048, true), "plain-rows");
    EXPECT_EQ(AttentionRoutes(gpu.traits, Exact(Precision::kFp32), 1, false), "exact-rows, exact-split beyond 6144");
    EXPECT_EQ(AttentionRoutes(gpu.traits, Exact(Precision::kFp16), 1, false), "exact-rows, exact-split beyond 6144");
    EXPECT_EQ(AttentionRoutes(gpu.traits, Exact(Precision::kFp16), 2048, true), "half-tiles");
    const AttentionShape per_row = Shape(32, 8, 128, Halved(), AttentionMode::kPerRow);
    EXPECT_EQ(AttentionRoutes(gpu.traits, per_row, 1, false), "window-rows");
    AttentionShape dealt = Llama();
    dealt.stripes = 2;
    dealt.longest = 131072;
    EXPECT_EQ(AttentionRoutes(gpu.traits, dealt, 1, false), "dealt-split");
    EXPECT_EQ(AttentionRoutes(gpu.traits, dealt, 2048, true), row.prompt);
    dealt.head_dim = 80;
    EXPECT_EQ(AttentionRoutes(gpu.traits, dealt, 1, false), "dealt-rows");
  }
}

// Layers with a sliding window: a block's share of the window's positions decides between look-ups and streams, not that
// of the whole context. Over dealt positions, prompts longer than the window take no tiles.
TEST(AttentionRoute, OfSlidingWindows) {
  const std::string resident = "rows fresh, split-resident beyond 256";
  const GpuTraits gpu = test::H200();
  const auto one = [&](int64_t window) { return AttentionRoutes(gpu, Llama(), 1, false, window); };
  EXPECT_EQ(one(0), resident + ", split-lookup beyond 10240");
  EXPECT_EQ(one(4096), resident);
  EXPECT_EQ(one(8192), resident);
  EXPECT_EQ(one(16384), resident + ", split-lookup beyond 10240");
  EXPECT_EQ(AttentionRoutes(gpu, Llama(), 8, false, 512), resident);
  EXPECT_EQ(AttentionRoutes(gpu, Llama(), 8, false, 4096), resident + ", split-lookup beyond 1024");
  EXPECT_EQ(AttentionRoutes(gpu, Llama(), 2048, true, 4096), "wide-tiles");
  AttentionShape dealt = Llama();
  dealt.stripes = 2;
  dealt.longest = 131072;
  EXPECT_EQ(AttentionRoutes(gpu, dealt, 1, false, 4096), "dealt-split");
  EXPECT_EQ(AttentionRoutes(gpu, dealt, 2048, true, 4096), "wide-tiles, rows beyond 4096, split-lookup beyond 6144");
  EXPECT_EQ(AttentionRoutes(gpu, dealt, 2048, true, 131072), "wide-tiles, split-lookup beyond 131072");
  EXPECT_EQ(AttentionRoutes(test::GpuModels().front().traits, dealt, 2048, true, 512),
            "tiles, rows beyond 512, split beyond 6144");
}

// Every route is taken by some pass, and none asks for more shared memory than the GPU has.
TEST(AttentionRoute, EveryOneIsTaken) {
  std::set<Route> taken;
  const auto take = [&](const GpuTraits& gpu, const AttentionShape& shape, const AttentionPass& pass) {
    const AttentionPlan plan = Plan(gpu, shape, pass);
    EXPECT_LE(plan.shared_bytes, gpu.max_shared_bytes);
    EXPECT_EQ(plan.scratch_bytes == 0, plan.short_rows == Route::kScFreshRows && plan.spill.stride == 0);
    EXPECT_LE(plan.scratch_bytes, AttentionScratchBytes(gpu, shape, {2048, 64, 131072}));
    taken.insert({plan.short_rows, plan.long_rows});
  };
  AttentionShape by_row = Llama();
  by_row.lengths = AttentionLengths::kByRow;
  AttentionShape by_tile = by_row;
  by_tile.lengths = AttentionLengths::kByTile;
  by_tile.longest_qk = by_tile.longest_av = Halved();
  AttentionShape any = by_row;
  any.lengths = AttentionLengths::kAny;
  AttentionShape any_window = any;
  any_window.mode = AttentionMode::kPerRow;
  const std::vector<AttentionShape> shapes = {Llama(),
                                              Shape(32, 8, 128, Halved(), AttentionMode::kPerHead),
                                              Exact(Precision::kFp32),
                                              Exact(Precision::kFp16),
                                              by_row,
                                              by_tile,
                                              any,
                                              any_window};
  for (test::GpuModel gpu : test::GpuModels()) {
    for (const bool is_shared : {false, true}) {
      gpu.traits.is_shared = is_shared;
      for (const AttentionShape& shape : shapes) {
        for (const int64_t length : {200, 300, 7000, 40000}) {
          for (const int64_t rows : {1, 8, 64}) {
            AttentionPass pass = AttentionPass::Rows(rows, length);
            take(gpu.traits, shape, pass);
            take(gpu.traits, shape, AttentionPass::Prompt(rows, length));
            if (shape.mode != AttentionMode::kPerToken) continue;
            AttentionShape dilated = shape;
            dilated.dilated = pass.dilated = true;
            take(gpu.traits, dilated, pass);
          }
        }
      }
      taken.insert({PlanDealt(gpu.traits, Llama(), 1, 1000).route,
                    PlanDealt(gpu.traits, Shape(32, 8, 80, Halved()), 1, 1000).route});
    }
  }
  std::set<std::string_view> names;
  for (int i = 0; AttentionRouteName(static_cast<Route>(i)) != "?"; ++i) {
    EXPECT_TRUE(taken.contains(static_cast<Route>(i))) << AttentionRouteName(static_cast<Route>(i));
    EXPECT_TRUE(names.insert(AttentionRouteName(static_cast<Route>(i))).second);
  }
  EXPECT_EQ(taken.size(), names.size());
}

TEST(AttentionRoute, FewRowsAppendThemselves) {
  const GpuTraits gpu = test::H200();
  const auto appends = [&](const AttentionShape& shape, const AttentionPass& pass) {
    const AttentionPlan plan = Plan(gpu, shape, pass);
    EXPECT_EQ(plan.long_rows, plan.short_rows);
    EXPECT_EQ(plan.count, pass.rows);
    return AppendsItself(plan.short_rows);
  };
  EXPECT_TRUE(appends(Llama(), AttentionPass::Rows(8, 256)));
  EXPECT_FALSE(appends(Llama(), AttentionPass::Rows(9, 256)));
  EXPECT_FALSE(appends(Llama(), AttentionPass::Rows(8, 257)));
  EXPECT_FALSE(appends(Shape(32, 8, 128, Halved(), AttentionMode::kPerRow), AttentionPass::Rows(8, 256)));
  EXPECT_FALSE(appends(Exact(Precision::kFp32), AttentionPass::Rows(1, 256)));
  EXPECT_FALSE(appends(Exact(Precision::kFp16), AttentionPass::Rows(1, 256)));
  // Over a window of a ring, keys and values are there.
  EXPECT_FALSE(appends(Llama(), AttentionPass::Rows(1, 256, AttentionUse::kRing)));
}

TEST(AttentionRoute, TilesOfLongSequences) {
  const GpuTraits gpu = test::H200();
  AttentionPass pass = AttentionPass::Prompt(512, 256);
  EXPECT_EQ(Plan(gpu, Llama(), pass).long_rows, Route::kScWide);
  EXPECT_EQ(Plan(gpu, Llama(), pass).short_rows, Route::kScRows);
  EXPECT_EQ(Plan(gpu, Llama(), pass).count, 0);
  pass.short_rows = 3;
  EXPECT_EQ(Plan(gpu, Llama(), pass).count, 3);
  EXPECT_EQ(Plan(gpu, Shape(4, 4, 80, Halved()), pass).long_rows, Route::kScRows);
  EXPECT_EQ(Plan(gpu, Shape(4, 4, 80, Halved()), pass).count, 512);
  EXPECT_EQ(Plan(gpu, Llama(), AttentionPass::Rows(512, 256, kRecorded)).long_rows, Route::kScRows);
  // Two tiles of a block are one sequence's: other batches go by mma.sync.
  AttentionShape pairs = Llama();
  pairs.num_heads = 16;
  const AttentionPlan plan = Plan(gpu, pairs, pass);
  EXPECT_EQ(plan.long_rows, Route::kScWide);
  EXPECT_EQ(BatchRoute(plan, 1), Route::kScWide);
  EXPECT_EQ(BatchRoute(plan, 2), Route::kScTiles);
  EXPECT_TRUE(plan.tiles.has_value());
  // Mixed lengths take wide tiles for all batches or none.
  pairs.lengths = AttentionLengths::kByTile;
  pairs.longest_qk = pairs.longest_av = Halved();
  EXPECT_EQ(Plan(gpu, pairs, pass).long_rows, Route::kMixedWide);
  pass.batch_sequences = 2;
  EXPECT_EQ(Plan(gpu, pairs, pass).long_rows, Route::kMixedRows);
  EXPECT_EQ(Plan(gpu, pairs, pass).count, 512);
  // Tiles over a window of a ring skip nothing before a sliding window.
  AttentionPass ring = AttentionPass::Prompt(512, 8192);
  ring.use = AttentionUse::kRing;
  EXPECT_EQ(Plan(gpu, Llama(), ring).long_rows, Route::kScWide);
  ring.window = 4096;
  EXPECT_EQ(Plan(gpu, Llama(), ring).long_rows, Plan(gpu, Llama(), ring).short_rows);
}

// Few queries go to the keys, keys to more queries; products are cut over no more blocks than have work.
TEST(AttentionRoute, OfDealtPositions) {
  EXPECT_EQ(PlanRingRoute(Llama(), RingRoute::kAuto, 1), RingRoute::kQuery);
  EXPECT_EQ(PlanRingRoute(Llama(), RingRoute::kAuto, 8), RingRoute::kQuery);
  EXPECT_EQ(PlanRingRoute(Llama(), RingRoute::kAuto, 9), RingRoute::kRing);
  EXPECT_EQ(PlanRingRoute(Llama(), RingRoute::kRing, 1), RingRoute::kRing);
  EXPECT_EQ(PlanRingRoute(Llama(), RingRoute::kQuery, 2048), RingRoute::kQuery);
  EXPECT_EQ(PlanRingRoute(Exact(Precision::kFp32), RingRoute::kAuto, 1), RingRoute::kRing);

  const GpuTraits gpu = test::H200();
  const DealtPlan few = PlanDealt(gpu, Llama(), 1, 512);
  EXPECT_EQ(few.route, Route::kDealtSplit);
  EXPECT_EQ(few.split.score_blocks, 8 * 4);  // of 8 KV heads, two units of positions and the ends
  EXPECT_EQ(few.split.value_blocks, 8 * 4);
  const DealtPlan many = PlanDealt(gpu, Llama(), 64, 65536);
  EXPECT_EQ(many.split.score_blocks, PlanSplitParts(gpu, Llama(), 65536).score_blocks);
}

// Settings of research take the plain kernel over the window of a ring, whose scratch is planned; their steps, too.
TEST(AttentionRoute, OfResearchSettingsOverDealtPositions) {
  const GpuTraits gpu = test::H200();
  for (const AttentionLengths lengths : {AttentionLengths::kByRow, AttentionLengths::kByTile, AttentionLengths::kAny}) {
    SCOPED_TRACE(static_cast<int>(lengths));
    AttentionShape shape = Llama();
    shape.stripes = 2;
    shape.lengths = lengths;
    shape.longest_qk = shape.longest_av = Halved();
    EXPECT_FALSE(HasQueryRoute(shape));
    EXPECT_EQ(PlanRingRoute(shape, RingRoute::kAuto, 1), RingRoute::kRing);
    const AttentionLimits limits{1056, 1, 8192};
    for (AttentionPass pass : {AttentionPass::Rows(1, 8192), AttentionPass::Prompt(1024, 8192)}) {
      pass.use = AttentionUse::kRing;
      const AttentionPlan plan = PlanAttention(gpu, shape, limits, pass);
      EXPECT_EQ(plan.short_rows, Route::kPlainRows);
      EXPECT_EQ(plan.long_rows, Route::kPlainRows);
      EXPECT_EQ(plan.scratch_bytes, AttentionScratchBytes(gpu, shape, limits));
    }
    EXPECT_EQ(AttentionRoutes(gpu, shape, 1, false), "plain-rows");
    EXPECT_EQ(AttentionRoutes(gpu, shape, 2048, true), "plain-rows");
  }
  AttentionShape exact = Exact(Precision::kFp32);
  exact.stripes = 2;
  exact.lengths = AttentionLengths::kAny;
  EXPECT_EQ(AttentionRoutes(gpu, exact, 1, false), "exact-rows");
}

// Keys in MXINT8 have a scale for every 32 dimensions, in windows and in slabs.
TEST(AttentionRoute, ARingCarriesTheScalesOfBlocksOfKeys) {
  KvCacheSpec spec;
  spec.mode = AttentionMode::kPerToken;
  spec.num_kv_heads = 2;
  spec.head_dim = 128;
  spec.page_tokens = 64;
  spec.stripes = 4;
  EXPECT_EQ(RingPageWords(spec), 16 * (32 + 32 + 1 + 1));
  const RingLayout one(spec, 4, {64, 1, 10});
  spec.key_scales = 4;
  EXPECT_EQ(RingPageWords(spec), 16 * (32 + 32 + 4 + 1));
  const RingLayout blocks(spec, 4, {64, 1, 10});
  constexpr int64_t kPositions = 2 * 10 * 64;
  EXPECT_EQ(blocks.value_scales - blocks.key_scales, 4 * kPositions * 4);
  EXPECT_EQ(blocks.window_bytes - one.window_bytes, 3 * kPositions * 4);
  EXPECT_EQ(blocks.slab_bytes - one.slab_bytes, 3 * kPositions / 4 * 4);
}

// A row kernel that appends takes every row; of others, only those whose outputs are wanted.
TEST(AttentionRoute, OutputRowsAlone) {
  const GpuTraits gpu = test::H200();
  AttentionPass pass = AttentionPass::Prompt(512, 1000);
  pass.output_rows = 1;
  const AttentionPlan one = Plan(gpu, Llama(), pass);
  EXPECT_EQ(one.attended, AttentionRows::kOutputs);
  EXPECT_EQ(one.count, 1);
  EXPECT_EQ(one.short_rows, Route::kScResident);
  EXPECT_EQ(one.long_rows, Route::kScResident);
  pass.output_rows = 0;
  EXPECT_EQ(Plan(gpu, Llama(), pass).count, 0);
  pass.output_rows = kFewOutputs + 1;
  EXPECT_EQ(Plan(gpu, Llama(), pass).attended, AttentionRows::kAll);
  EXPECT_EQ(Plan(gpu, Llama(), pass).long_rows, Route::kScWide);
  AttentionPass few = AttentionPass::Rows(8, 256);
  few.output_rows = 1;
  EXPECT_EQ(Plan(gpu, Llama(), few).attended, AttentionRows::kAll);
  EXPECT_EQ(Plan(gpu, Llama(), few).count, 8);
}

// One row goes from kernel to kernel word by word where a kernel takes it so, and is appended by it.
TEST(AttentionRoute, HandedOverByWords) {
  const GpuTraits gpu = test::H200();
  const auto handover = [&](const AttentionShape& shape, const AttentionPass& pass) {
    return Plan(gpu, shape, pass).handover;
  };
  constexpr Handover kWords = Handover::kWords;
  constexpr Handover kMemory = Handover::kMemory;
  for (const int64_t length : {1, 256, 257, 10241, 131072}) {
    EXPECT_EQ(handover(Llama(), AttentionPass::Rows(1, length)), kWords) << length;
    EXPECT_EQ(handover(Llama(), AttentionPass::Rows(2, length)), kMemory) << length;
    EXPECT_EQ(handover(Exact(Precision::kFp32), AttentionPass::Rows(1, length)), kMemory) << length;
    EXPECT_EQ(handover(Exact(Precision::kFp16), AttentionPass::Rows(1, length)), kMemory) << length;
  }
  EXPECT_EQ(handover(Shape(32, 8, 80, Halved()), AttentionPass::Rows(1, 256)), kWords);
  EXPECT_EQ(handover(Shape(32, 8, 80, Halved()), AttentionPass::Rows(1, 257)), kWords);  // rows that append
  EXPECT_EQ(handover(Llama(), AttentionPass::Rows(1, 257, AttentionUse::kRing)), kMemory);
  // A norm between: the row kernel does it, resident blocks do not.
  AttentionPass normed = AttentionPass::Rows(1, 256);
  normed.has_norm = true;
  EXPECT_EQ(Plan(gpu, Llama(), normed).norm, AttentionNorm::kRowKernel);
  EXPECT_EQ(handover(Llama(), normed), kWords);
  EXPECT_EQ(Plan(gpu, Shape(32, 8, 80, Halved()), normed).norm, AttentionNorm::kOwnKernel);
  EXPECT_EQ(handover(Shape(32, 8, 80, Halved()), normed), kMemory);
  normed.max_length = 257;
  EXPECT_EQ(Plan(gpu, Llama(), normed).norm, AttentionNorm::kOwnKernel);
  EXPECT_EQ(handover(Llama(), normed), kMemory);
  // A row that nobody wants is appended by a kernel of its own, as no other is launched.
  AttentionPass unwanted = AttentionPass::Rows(1, 300);
  unwanted.output_rows = 0;
  EXPECT_EQ(handover(Llama(), unwanted), kMemory);
  EXPECT_FALSE(AppendsItself(Plan(gpu, Llama(), unwanted).short_rows));
}

// Bytes of an H200's workspace as recorded before the plan had routes.
TEST(AttentionRoute, ScratchOfAnH200) {
  const GpuTraits gpu = test::H200();
  const AttentionShape per_head = Shape(32, 8, 128, Halved(), AttentionMode::kPerHead);
  AttentionShape dealt = Llama();
  dealt.stripes = 2;
  dealt.longest = 131072;
  EXPECT_EQ(AttentionScratchBytes(gpu, Llama(), {8, 32, 8192}), 9291776);
  EXPECT_EQ(AttentionScratchBytes(gpu, Llama(), {2048, 32, 8192}), 1896611840);
  EXPECT_EQ(AttentionScratchBytes(gpu, per_head, {2048, 32, 8448}), 1896883200);
  EXPECT_EQ(AttentionScratchBytes(gpu, dealt, {2048, 1, 131072}), 1225269248);
  EXPECT_EQ(AttentionScratchBytes(gpu, Exact(Precision::kFp32), {8, 32, 131072}), 137626624);
  EXPECT_EQ(AttentionScratchBytes(gpu, Exact(Precision::kFp16), {8, 32, 131072}),
            AttentionScratchBytes(gpu, Exact(Precision::kFp32), {8, 32, 131072}));
  // Dilated attention needs the codes of queries and scores in memory besides, 64 MiB of these at most.
  AttentionShape dilated = Llama();
  dilated.dilated = true;
  EXPECT_EQ(AttentionScratchBytes(gpu, dilated, {8, 32, 131072}), AttentionScratchBytes(gpu, Llama(), {8, 32, 131072}));
  EXPECT_EQ(AttentionScratchBytes(gpu, dilated, {8, 32, 256}),
            RouteScratchBytes(gpu, dilated, {8, 32, 256}, Route::kPlainRows));
  EXPECT_GT(AttentionScratchBytes(gpu, dilated, {8, 32, 256}), AttentionScratchBytes(gpu, Llama(), {8, 32, 256}));
  // Lengths of rows need their tables besides; those of a whole call a pass over scores in memory, 64 MiB of them.
  AttentionShape lengths = Shape(32, 8, 128, Halved());
  const int64_t uniform = AttentionScratchBytes(gpu, lengths, {8, 32, 8192});
  lengths.lengths = AttentionLengths::kByRow;
  EXPECT_EQ(RouteScratchBytes(gpu, lengths, {8, 32, 8192}, Route::kMixedRows), uniform + 256 * (16 + 1 + 1 + 128));
  lengths.lengths = AttentionLengths::kAny;
  EXPECT_GE(AttentionScratchBytes(gpu, lengths, {2048, 32, 8192}), int64_t{64} << 20);
  EXPECT_LE(AttentionScratchBytes(gpu, lengths, {2048, 32, 8192}), (int64_t{64} << 20) + 2048 * 32 * 140);
}

}  // namespace
}  // namespace stoch
