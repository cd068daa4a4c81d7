// SPDX-License-Identifier: Apache-2.0
// Layers of a cache whose products differ: lengths of rows, settings of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/plan/attention/plan.h"
#include "kernels/plan/plain_reason.h"
#include "tests/kernels/gpu/mixed_cases.h"
#include "tests/kernels/plan/gpu_models.h"

namespace stoch {
namespace {

using Lengths = AttentionLengths;
using Products = KvCacheSpec::Products;

// Keys and values of 128 halved cycles in no chunks.
ScConfig Plain() { return test::MixedConfig(0); }

Products Uniform(const ScConfig& config = Plain()) { return {MakeScOperator(config), MakeScOperator(config)}; }

// Both products with a length for every row.
Products Mixed(const std::vector<int>& levels, const ScConfig& config = Plain(),
               const std::function<void(ScLengthRule*)>& edit = {}) {
  const auto rule = test::RowRule(levels);
  if (edit) edit(rule.get());
  ScConfig longest = config;
  longest.stoc_len = *std::max_element(levels.begin(), levels.end());
  Products products = Uniform(longest);
  products.qk_extras = products.av_extras = test::MakeExtras(config, rule);
  return products;
}

KvCacheSpec Cache(std::vector<Products> layers) {
  KvCacheSpec spec;
  spec.num_layers = std::max(1, static_cast<int>(layers.size()));
  spec.num_kv_heads = 8;
  spec.head_dim = 128;
  spec.num_pages = 1;
  spec.mode = AttentionMode::kPerToken;
  spec.qk = spec.av = MakeScOperator(Plain());
  spec.layers = std::move(layers);
  return spec;
}

// As recorded from the tables that caches on GPUs make for such products.
TEST(AttentionLayers, WhichKernelsTakeTheLengths) {
  EXPECT_EQ(LengthsOf(Uniform()), Lengths::kUniform);
  EXPECT_EQ(LengthsOf(Mixed({128, 64, 24})), Lengths::kByTile);
  EXPECT_EQ(LengthsOf(Mixed({128, 64, 0})), Lengths::kByTile);
  EXPECT_EQ(LengthsOf(Mixed({90, 64, 7})), Lengths::kByTile);  // in the order of 128 cycles, which no row has
  ScConfig full = Plain();
  full.halve = false;
  EXPECT_EQ(LengthsOf(Mixed({256, 128, 48}, full)), Lengths::kByRow);  // wide tiles have streams of 128 cycles at most
  EXPECT_EQ(LengthsOf(Mixed({128, 64}, Plain(), [](ScLengthRule* rule) { rule->normalise = ScNormalise::kCall; })),
            Lengths::kAny);
  EXPECT_EQ(LengthsOf(Mixed({128, 64}, Plain(),
                            [](ScLengthRule* rule) {
                              rule->scope = ScLengthScope::kFractions;
                              rule->fractions = {0.5, 0.5};
                            })),
            Lengths::kAny);
  ScConfig integers = Plain();
  integers.halve = false;
  integers.arith = ScArith::kInt8;
  EXPECT_EQ(LengthsOf(Uniform(integers)), Lengths::kAny);
  for (const ScArith arith : {ScArith::kFp8E4m3, ScArith::kMxInt8}) {
    ScConfig format = integers;
    format.arith = arith;
    EXPECT_EQ(LengthsOf(Uniform(format)), Lengths::kAny);
  }
  ScConfig table = Plain();
  table.halve = false;
  table.gate = ScGate::kTable;
  table.table = "odd";
  table.multiplier = test::OddTable(1, true);
  EXPECT_EQ(LengthsOf(Uniform(table)), Lengths::kAny);
  ScConfig gate = Plain();
  gate.halve = false;
  gate.gate = ScGate::kXnor;
  EXPECT_EQ(LengthsOf(Uniform(gate)), Lengths::kAny);
  ScConfig hardware = Plain();
  hardware.acc_bits = 14;
  EXPECT_EQ(LengthsOf(Uniform(hardware)), Lengths::kAny);
  EXPECT_EQ(LengthsOf(Mixed({128, 64}, hardware)), Lengths::kAny);
  // One product decides for both.
  Products one = Uniform();
  one.av_extras = Mixed({128, 64}).av_extras;
  EXPECT_EQ(LengthsOf(one), Lengths::kByTile);
  one.av_extras = Mixed({128, 64}, Plain(), [](ScLengthRule* rule) { rule->normalise = ScNormalise::kCall; }).av_extras;
  EXPECT_EQ(LengthsOf(one), Lengths::kAny);
  one.qk = MakeScOperator(integers);
  EXPECT_EQ(LengthsOf(one), Lengths::kAny);
}

// Whole windows have kernels of uniform lengths, or the plain one; factors of q and k have the plain one alone.
TEST(AttentionLayers, WindowsAndFactors) {
  KvCacheSpec spec;
  spec.num_layers = 1;
  spec.num_kv_heads = 1;
  spec.head_dim = 128;
  spec.num_pages = 1;
  spec.qk = spec.av = MakeScOperator(Plain());
  for (const AttentionMode mode : {AttentionMode::kPerToken, AttentionMode::kPerRow}) {
    spec.mode = mode;
    spec.layers.clear();
    spec.smooths_qk = false;
    EXPECT_EQ(MakeAttentionLayers(spec, 1).at(0).lengths, Lengths::kUniform);
    spec.smooths_qk = true;
    EXPECT_EQ(MakeAttentionLayers(spec, 1).at(0).lengths, Lengths::kAny);
    spec.smooths_qk = false;
    spec.layers = {Mixed({128, 64})};
    EXPECT_EQ(MakeAttentionLayers(spec, 1).at(0).lengths,
              mode == AttentionMode::kPerToken ? Lengths::kByTile : Lengths::kAny);
  }
}

// Exact attention with a table of exp goes by whole rows, where contexts would be cut over the GPU else.
TEST(AttentionLayers, TablesOfExpInExactAttention) {
  KvCacheSpec spec;
  spec.num_layers = 1;
  spec.num_kv_heads = 8;
  spec.head_dim = 128;
  spec.num_pages = 256;
  const AttentionLimits limits{64, 8, int64_t{256} * 64};
  for (const test::GpuModel& gpu : test::GpuModels()) {
    SCOPED_TRACE(gpu.name);
    AttentionShape shapes[2];
    for (const bool has_table : {false, true}) {
      spec.smooths_qk = has_table;
      shapes[has_table ? 1 : 0] = MakeAttentionLayers(spec, 32).at(0);
    }
    const AttentionPass step = AttentionPass::Rows(1, 16000);
    EXPECT_EQ(PlanAttention(gpu.traits, shapes[0], limits, step).short_rows, AttentionRoute::kExactSplit);
    const AttentionPlan plan = PlanAttention(gpu.traits, shapes[1], limits, step);
    EXPECT_EQ(plan.short_rows, AttentionRoute::kExactRows);
    EXPECT_EQ(plan.long_rows, AttentionRoute::kExactRows);
    EXPECT_LE(plan.scratch_bytes, AttentionScratchBytes(gpu.traits, shapes[1], limits));
    EXPECT_GT(plan.spill.stride, 0);
  }
}

// Keys and queries in MXINT8 have a scale for each block.
TEST(AttentionLayers, ScratchHasRoomForScalesOfBlocks) {
  ScConfig format;
  format.arith = ScArith::kMxInt8;
  KvCacheSpec spec = Cache({});
  spec.qk = MakeScOperator(format);
  const AttentionLimits limits{64, 8, 512};
  const auto bytes = [&](AttentionMode mode, int64_t key_scales) {
    spec.mode = mode;
    spec.key_scales = key_scales;
    return AttentionScratchBytes(test::H200(), MakeAttentionLayers(spec, 32), limits);
  };
  constexpr int64_t kVectors = 64 * 32;
  EXPECT_EQ(bytes(AttentionMode::kPerToken, 4), bytes(AttentionMode::kPerToken, 1) + 3 * kVectors * 4);
  EXPECT_GE(bytes(AttentionMode::kPerRow, 4), bytes(AttentionMode::kPerRow, 1) + (512 + 64) * 3 * 4);
}

// People are told what takes attention to the plain kernels.
TEST(AttentionLayers, ReasonsOfPlainKernels) {
  KvCacheSpec spec = Cache({});
  EXPECT_EQ(PlainReason(spec), "");
  spec.smooths_qk = true;
  EXPECT_EQ(PlainReason(spec), "factors of qk, a table of softmax or a cap of scores");
  ScConfig hardware = Plain();
  hardware.fault_product = 0.25;
  spec.layers = {Mixed({128, 64}), Uniform(hardware)};
  EXPECT_EQ(PlainReason(spec), "fault_product=0.25");
  spec.layers = {Mixed({128, 64}, Plain(), [](ScLengthRule* rule) { rule->normalise = ScNormalise::kCall; })};
  EXPECT_EQ(PlainReason(spec), "lengths of a whole call");
  spec.layers = {Mixed({128, 64})};
  EXPECT_EQ(PlainReason(spec), "factors of qk, a table of softmax or a cap of scores");
  spec.smooths_qk = false;
  spec.stripes = 2;
  EXPECT_EQ(PlainReason(spec), "mixed lengths over dealt positions");
  spec.mode = AttentionMode::kExact;
  EXPECT_EQ(PlainReason(spec), "");
}

// A table of 1 / sqrt has a kernel of its own, where rows of uniform lengths norm their heads themselves else.
TEST(AttentionLayers, NormsByTables) {
  KvCacheSpec spec;
  spec.num_layers = 1;
  spec.num_kv_heads = 8;
  spec.head_dim = 128;
  spec.num_pages = 8;
  spec.mode = AttentionMode::kPerToken;
  spec.qk = spec.av = MakeScOperator(Plain());
  const AttentionShape shape = MakeAttentionLayers(spec, 32).at(0);
  AttentionPass pass = AttentionPass::Rows(1, 100);
  pass.has_norm = true;
  const GpuTraits gpu = test::H200();
  EXPECT_EQ(PlanAttention(gpu, shape, {8, 8, 512}, pass).norm, AttentionNorm::kRowKernel);
  pass.has_norm_table = true;
  EXPECT_EQ(PlanAttention(gpu, shape, {8, 8, 512}, pass).norm, AttentionNorm::kOwnKernel);
  EXPECT_EQ(PlanAttention(gpu, shape, {8, 8, 512}, pass).handover, Handover::kMemory);
}

// The streams of K and V are those of the longest, or of the next length that wide tiles have.
TEST(AttentionLayers, StreamsOfWideTiles) {
  const auto cycles = [](const std::vector<int>& levels) {
    const Products products = Mixed(levels);
    const ScOperatorPtr wide = WideOperator(products.qk_extras->by_length);
    return wide == nullptr ? 0 : wide->config.stoc_len;
  };
  EXPECT_EQ(cycles({128, 64, 24}), 128);
  EXPECT_EQ(cycles({90, 64}), 128);
  EXPECT_EQ(cycles({64, 24, 0}), 64);
  EXPECT_EQ(cycles({40, 8}), 64);
}

TEST(AttentionLayers, LayersThatAreAlikeShareAShape) {
  const AttentionLayers alone = MakeAttentionLayers(Cache({}), 32);
  ASSERT_EQ(alone.shapes.size(), 1u);
  EXPECT_TRUE(alone.at(7).swapped);
  EXPECT_EQ(alone.at(7).lengths, Lengths::kUniform);
  EXPECT_EQ(alone.at(7).group(), 4);

  Products other = Mixed({128, 64, 24}, Plain(), [](ScLengthRule* rule) { rule->thresholds = {0.9f, 0.1f}; });
  const AttentionLayers layers =
      MakeAttentionLayers(Cache({Mixed({128, 64, 24}), Uniform(), other, Mixed({128, 64}), Uniform()}), 32);
  EXPECT_EQ(layers.of_layer, (std::vector<size_t>{0, 1, 0, 2, 1}));
  ASSERT_EQ(layers.shapes.size(), 3u);
  EXPECT_EQ(layers.at(2).lengths, Lengths::kByTile);
  EXPECT_EQ(layers.at(2).longest_qk.stoc_len, 128);
  EXPECT_FALSE(layers.at(2).swapped);
  // Tables of one layer's operators are no other's: wide tiles then take uniform lengths nowhere.
  EXPECT_EQ(layers.at(4).lengths, Lengths::kUniform);
  EXPECT_FALSE(layers.at(4).swapped);
  EXPECT_EQ(layers.at(4).qk.stoc_len, 128);
}

// `stoch inspect` of such caches on an H200, and scratch that all of their layers have room in.
TEST(AttentionLayers, RoutesAndScratchOfEveryLayer) {
  const GpuTraits gpu = test::H200();
  const AttentionLimits limits{2048, 32, 8192};
  const auto see = [&](std::vector<Products> products, int64_t tokens, bool is_prompt,
                       const std::vector<int64_t>& windows = {}) {
    return AttentionRoutes(gpu, MakeAttentionLayers(Cache(std::move(products)), 32), tokens, is_prompt, windows);
  };
  EXPECT_EQ(see({Mixed({128, 64})}, 1, false), "mixed-rows fresh");
  EXPECT_EQ(see({Mixed({128, 64})}, 8, false), "mixed-rows");
  EXPECT_EQ(see({Mixed({128, 64})}, 512, true), "mixed-wide-tiles");
  EXPECT_EQ(see({Mixed({128, 64}), Mixed({128, 24})}, 512, true), "mixed-wide-tiles");
  EXPECT_EQ(see({Mixed({128, 64}), Uniform()}, 512, true), "mixed-wide-tiles; tiles");
  ScConfig integers = Plain();
  integers.halve = false;
  integers.arith = ScArith::kInt8;
  EXPECT_EQ(see({Uniform(integers), Mixed({128, 64})}, 1, false), "plain-rows; mixed-rows fresh");
  // Routes follow from products that all layers share, or each layer has for itself, and from the window of each.
  const std::string near = "rows fresh, split-resident beyond 256";
  const std::string far = near + ", split-lookup beyond 10240";
  EXPECT_EQ(see({Uniform()}, 1, false), far);
  EXPECT_EQ(see({Uniform()}, 1, false, {512, 512, 0, 512}), near + "; " + far);
  EXPECT_EQ(see({Uniform(), Mixed({128, 64})}, 1, false, {512, 0}), near + "; mixed-rows fresh");
  EXPECT_EQ(see({Uniform(), Mixed({128, 64})}, 1, false, {0, 512}), far + "; mixed-rows fresh");

  const AttentionLayers both = MakeAttentionLayers(Cache({Uniform(), Mixed({128, 64})}), 32);
  const AttentionLayers other_way = MakeAttentionLayers(Cache({Mixed({128, 64}), Uniform()}), 32);
  EXPECT_EQ(AttentionScratchBytes(gpu, both, limits), AttentionScratchBytes(gpu, other_way, limits));
  EXPECT_EQ(AttentionScratchBytes(gpu, both, limits),
            std::max(AttentionScratchBytes(gpu, both.at(0), limits), AttentionScratchBytes(gpu, both.at(1), limits)));
  EXPECT_GE(AttentionScratchBytes(gpu, both, limits),
            RouteScratchBytes(gpu, both.at(1), limits, AttentionRoute::kMixedWide));
}

}  // namespace
}  // namespace stoch
