// SPDX-License-Identifier: Apache-2.0
// Plans of attention over GPUs that nobody has to own.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "kernels/context_bucket.h"
#include "kernels/plan/attention/plan.h"
#include "tests/kernels/plan/attention_shapes.h"
#include "tests/kernels/plan/gpu_models.h"

namespace stoch {
namespace {

using test::Halved;
using test::Plan;
using test::Shape;

TEST(AttentionPlan, FitsEveryGpu) {
  const std::vector<ScTraits> operators = {Halved(), Halved(64), MakeScTraits(*MakeScOperator(ScConfig{}))};
  for (const test::GpuModel& gpu : test::GpuModels()) {
    for (const ScTraits& sc : operators) {
      for (const int head_dim : {16, 64, 80, 128, 256}) {
        for (const int heads : {1, 8, 32, 64}) {
          const AttentionShape shape = Shape(heads, std::max(1, heads / 4), head_dim, sc);
          SCOPED_TRACE(gpu.name + " head_dim " + std::to_string(head_dim) + " heads " + std::to_string(heads));
          const std::optional<ScTilePlan> tiles = PlanScTiles(gpu.traits, shape);
          EXPECT_EQ(tiles.has_value(), sc.stoc_len <= 128 && (head_dim == 64 || head_dim == 128));
          if (tiles) {
            EXPECT_LE(tiles->score_shared_bytes, gpu.traits.max_shared_bytes);
            EXPECT_LE(tiles->value_shared_bytes, gpu.traits.max_shared_bytes);
          }
          AttentionShape swapped = shape;
          swapped.swapped = true;
          EXPECT_FALSE(PlanWideTiles(gpu.traits, shape));
          for (const AttentionLengths lengths : {AttentionLengths::kUniform, AttentionLengths::kByTile}) {
            swapped.lengths = lengths;
            const std::optional<WidePlan> wide = PlanWideTiles(gpu.traits, swapped);
            if (!wide) continue;
            EXPECT_TRUE(gpu.traits.has_wgmma);
            EXPECT_LE(wide->score_shared_bytes + kWideStaticBytes, gpu.traits.max_shared_bytes);
            EXPECT_LE(wide->value_shared_bytes + kWideStaticBytes, gpu.traits.max_shared_bytes);
            EXPECT_LE(wide->heads * wide->tiles, kWideSlots);
            EXPECT_GE(wide->heads * wide->parts, heads / std::max(1, heads / 4));
          }
          const SplitPlan split = PlanSplit(gpu.traits, shape, 1, 131072);
          EXPECT_EQ(split.kernel != SplitKernel::kNone, sc.stoc_len <= 128 && (head_dim == 64 || head_dim == 128));
          EXPECT_LE(split.score_shared_bytes, gpu.traits.max_shared_bytes);
          EXPECT_LE(split.value_shared_bytes, gpu.traits.max_shared_bytes);
          for (const int64_t length : {257, 4096, 16384, 131072}) {
            for (const int64_t rows : {1, 8, 64}) {
              const SplitPlan cut = PlanSplit(gpu.traits, shape, rows, length);
              ASSERT_LE(cut.shared_bytes, gpu.traits.max_shared_bytes);
              if (!IsResident(cut.kernel)) continue;
              ASSERT_LE(cut.blocks, gpu.traits.sm_count);
              ASSERT_GE(cut.blocks, rows * shape.num_kv_heads * cut.head_blocks);
              ASSERT_GT(cut.positions, 0);
              ASSERT_EQ(cut.positions % kSplitResidentStep, 0);
              if (cut.kernel == SplitKernel::kResident) continue;
              ASSERT_GE(cut.shared_bytes, kSplitLookupBytes + SplitLookupCountBytes(cut.positions));
              ASSERT_LE(cut.block_heads, 4);
            }
          }
          if (split.kernel != SplitKernel::kNone) {
            EXPECT_GE(split.score_blocks, gpu.traits.sm_count);
            EXPECT_GE(split.value_blocks, gpu.traits.sm_count);
            EXPECT_GE(split.block_heads * split.head_blocks, heads / shape.num_kv_heads);
          }
          for (int64_t rows = 1; rows <= 2048; ++rows) {
            for (const int64_t length : {1, 256, 257, 700, 5000, 8192, 8193, 131072}) {
              const ScRowPlan plan = PlanScRows(gpu.traits, shape, rows, length);
              ASSERT_LE(plan.shared_bytes + plan.static_bytes, gpu.traits.max_shared_bytes) << rows << " " << length;
              ASSERT_TRUE(plan.cluster == 1 || (gpu.traits.has_clusters && plan.cluster <= 8)) << rows << " " << length;
            }
          }
        }
      }
    }
  }
}

TEST(AttentionPlan, AnH200RunsWhatItRanBefore) {
  const GpuTraits gpu = test::H200();
  const AttentionShape llama = Shape(32, 8, 128, Halved());
  const ScTilePlan tiles = PlanScTiles(gpu, llama).value();
  EXPECT_EQ(tiles.score_shared_bytes, 73728);
  EXPECT_EQ(tiles.value_shared_bytes, 32768);
  struct Row {
    int64_t rows, length;
    int cluster, blocks_per_sm;
    int64_t shared_bytes;
  };
  for (const Row& row : {Row{1, 129, 1, 1, 44800}, Row{1, 256, 1, 1, 44800}, Row{1, 257, 4, 1, 47360},
                         Row{1, 700, 8, 2, 50432}, Row{5, 300, 1, 2, 45824}, Row{8, 700, 1, 2, 46848},
                         Row{9, 700, 1, 4, 46848}, Row{32, 8192, 1, 4, 76544}, Row{2, 131072, 4, 2, 78080}}) {
    const ScRowPlan plan = PlanScRows(gpu, llama, row.rows, row.length);
    SCOPED_TRACE(std::to_string(row.rows) + " rows of " + std::to_string(row.length));
    EXPECT_EQ(plan.cluster, row.cluster);
    EXPECT_EQ(plan.blocks_per_sm, row.blocks_per_sm);
    EXPECT_EQ(plan.shared_bytes, row.shared_bytes);
  }
}

TEST(AttentionPlan, TilesWithoutBinaryMmaAreInt8) {
  const GpuTraits rtx = test::TraitsOf(120, 170, 99, 120);
  const ScTilePlan plan = PlanScTiles(rtx, Shape(32, 8, 128, Halved())).value();
  EXPECT_EQ(plan.products, BitProducts::kInt8);
  EXPECT_EQ(plan.score_shared_bytes, 93696);
  EXPECT_EQ(plan.value_shared_bytes, 46848);
  // Operators without the form, and GPUs that multiply bits.
  ScConfig other;
  SetScParameter(other, "stoc_len", "128");
  SetScParameter(other, "source", "vdc");
  const ScTraits vdc = MakeScTraits(*MakeScOperator(other));
  EXPECT_EQ(PlanScTiles(rtx, Shape(32, 8, 128, vdc)).value().products, BitProducts::kBinary);
  EXPECT_EQ(PlanScTiles(test::H200(), Shape(32, 8, 128, Halved())).value().products, BitProducts::kBinary);
}

TEST(AttentionPlan, ClustersNeedCodeThatHasThem) {
  const AttentionShape shape = Shape(32, 8, 128, Halved());
  EXPECT_EQ(PlanScRows(test::TraitsOf(100, 148, 227, 80), shape, 1, 5000).cluster, 1);
  EXPECT_EQ(PlanScRows(test::TraitsOf(100, 148, 227, 100), shape, 1, 5000).cluster, 8);
}

// Resident blocks pay from 257 positions on, several kernels from 6145.
TEST(AttentionPlan, WhereContextsAreCut) {
  const AttentionShape llama = Shape(32, 8, 128, Halved());
  GpuTraits gpu = test::H200();
  GpuTraits shared = gpu;
  shared.is_shared = true;
  const auto is_split = [](const GpuTraits& traits, const AttentionShape& shape, int64_t rows, int64_t length) {
    return CutsContexts(Plan(traits, shape, AttentionPass::Rows(rows, length, AttentionUse::kRecorded)).short_rows);
  };
  for (const int rows : {1, 7, 8, 16}) {
    EXPECT_FALSE(is_split(gpu, llama, rows, 256));
    EXPECT_TRUE(is_split(gpu, llama, rows, 257));
  }
  EXPECT_FALSE(is_split(gpu, llama, 17, 6144));
  EXPECT_TRUE(is_split(gpu, llama, 17, 6145));
  for (const int rows : {1, 8}) {
    EXPECT_FALSE(is_split(shared, llama, rows, 6144));
    EXPECT_TRUE(is_split(shared, llama, rows, 6145));
  }
  // Llama 2 13B: five rows of 40 KV heads are more than an H200 has SMs for.
  const AttentionShape llama2 = Shape(40, 40, 128, Halved());
  EXPECT_TRUE(is_split(gpu, llama2, 3, 257));
  EXPECT_FALSE(is_split(gpu, llama2, 5, 6144));
  gpu.has_clusters = shared.has_clusters = false;
  EXPECT_TRUE(is_split(gpu, llama, 1, 257));
  EXPECT_FALSE(is_split(shared, llama, 1, 6144));
  EXPECT_TRUE(is_split(shared, llama, 1, 6145));
  EXPECT_FALSE(is_split(gpu, Shape(32, 8, 80, Halved()), 1, 131072));
  AttentionShape exact = llama;
  exact.mode = AttentionMode::kExact;
  EXPECT_TRUE(is_split(gpu, exact, 1, 6145));
  EXPECT_FALSE(is_split(gpu, exact, 1, 6144));
  gpu.split_from = 257;
  EXPECT_FALSE(is_split(gpu, llama, 1, 256));
  EXPECT_TRUE(is_split(gpu, llama, 1, 257));
  // A recorded graph is made for the longest context of its class.
  for (const int64_t length : {1, 256, 257, 1024, 1025, 6144, 6145, 14336, 14337, 32768, 32769, 50000}) {
    EXPECT_GE(LongestOfBucket(ContextBucket(length), 131072), length);
    EXPECT_EQ(LongestOfBucket(ContextBucket(length), length), length);
    EXPECT_EQ(ContextBucket(LongestOfBucket(ContextBucket(length), 131072)), ContextBucket(length));
  }
}

// Whatever the number of its rows and its length, a pass within the limits finds the scratch that its kernel takes.
TEST(AttentionPlan, ScratchOfSplitsIsPlanned) {
  const AttentionShape llama = Shape(32, 8, 128, Halved());
  for (const test::GpuModel& gpu : test::GpuModels()) {
    for (const int64_t context : {256, 768, 5120, 6144, 6145, 131072}) {
      const SpillPlan plan = PlanSpill(gpu.traits, llama, {2048, 32, context});
      for (const int64_t rows : {1, 7, 8, 32, 2048}) {
        SCOPED_TRACE(gpu.name + ", " + std::to_string(rows) + " rows of " + std::to_string(context));
        const AttentionPass pass = AttentionPass::Rows(rows, context, AttentionUse::kRecorded);
        if (!CutsContexts(Plan(gpu.traits, llama, pass).short_rows)) continue;
        EXPECT_GT(plan.parts, 0);
        EXPECT_GT(plan.rows_at_once, 0);
      }
    }
  }
}

// Every tile and head of a pass once, and never more scores than the arena holds.
TEST(AttentionPlan, GroupsOfTilesFitTheArena) {
  for (const auto& [heads, kv_heads] : {std::pair<int, int>{32, 8}, {64, 8}, {8, 8}, {1, 1}, {12, 4}}) {
    const AttentionShape shape = Shape(heads, kv_heads, 128, Halved());
    for (int64_t stride = 64; stride <= 1 << 20; stride = stride * 3 / 2 / 64 * 64 + 64) {
      for (const int64_t tiles : {1, 2, 8, 32, 33, 1024}) {
        const TileGroup group = CutTiles(test::H200(), shape, stride, tiles);
        ASSERT_GE(group.tiles, 1);
        ASSERT_LE(group.tiles, tiles);
        ASSERT_GE(group.heads, 1);
        ASSERT_LE(group.heads, heads);
        ASSERT_TRUE(group.heads == heads || (group.tiles == 1 && group.heads % (heads / kv_heads) == 0));
        // At least the heads of one KV head.
        const int64_t least = int64_t{heads / kv_heads} * kQueryTile * stride * 2;
        ASSERT_LE(group.tiles * group.heads * kQueryTile * stride * 2, std::max(test::H200().max_score_bytes, least))
            << stride << " " << tiles;
      }
    }
  }
  // Blocks of a group fill the SMs: at 32768 four tiles of 32 heads rather than the five that fit.
  EXPECT_EQ(CutTiles(test::H200(), Shape(32, 8, 128, Halved()), 32768, 32).tiles, 4);
  // A window of 2048 of an 8B model is one group; a tile of 70B at 131072 is cut by heads.
  EXPECT_EQ(CutTiles(test::H200(), Shape(32, 8, 128, Halved()), 2048, 32).tiles, 32);
  EXPECT_EQ(CutTiles(test::H200(), Shape(64, 8, 128, Halved()), 131072, 8).heads, 40);
}

TEST(AttentionPlan, WideTilesOfAnH200) {
  const GpuTraits gpu = test::H200();
  AttentionShape llama = Shape(32, 8, 128, Halved());
  llama.swapped = true;
  const WidePlan plan = PlanWideTiles(gpu, llama).value();
  EXPECT_EQ(plan.heads, 4);
  EXPECT_EQ(plan.tiles, 1);
  EXPECT_EQ(plan.parts, 1);
  EXPECT_EQ(plan.key_bytes, 2304);
  EXPECT_EQ(plan.first_bytes, 2 * 10 * 2048 / 64);
  EXPECT_EQ(plan.other_bytes, 3 * 16 * 2048 / 64);
  EXPECT_EQ(plan.code_bytes, 128);
  EXPECT_FALSE(SharesStreams(gpu, llama, plan, 1 << 20));  // nothing is dealt
  EXPECT_EQ(plan.score_stages, 5);
  EXPECT_EQ(plan.value_stages, 11);
  EXPECT_TRUE(TakesBatch(plan, 8));
  // Streams and scores of a window of 2048 at once; beyond, some KV heads and tiles at a time.
  EXPECT_EQ(WideKvHeads(gpu, llama, plan, 2048, 2048), 8);
  EXPECT_EQ(WideTiles(gpu, llama, plan, 2048, 8, 8, 2048, 1024), 80);
  EXPECT_EQ(WideKvHeads(gpu, llama, plan, 32768, 32768), 4);
  EXPECT_EQ(WideTiles(gpu, llama, plan, 32768, 4, 4, 32768, 1024), 10);
  EXPECT_EQ(WideKvHeads(gpu, llama, plan, 131072, 131072), 1);
  EXPECT_EQ(WideTiles(gpu, llama, plan, 131072, 1, 1, 131072, 1024), 10);
  // Query heads that do not fill a block: tiles of one sequence do.
  for (const auto& [heads, of_block, tiles, parts] :
       {std::array{8, 1, 4, 1}, {16, 2, 2, 1}, {24, 3, 1, 1}, {40, 3, 1, 2}, {64, 4, 1, 2}}) {
    AttentionShape shape = Shape(heads, 8, 64, Halved(64));
    shape.swapped = true;
    const WidePlan other = PlanWideTiles(gpu, shape).value();
    EXPECT_EQ(other.heads, of_block) << heads;
    EXPECT_EQ(other.tiles, tiles) << heads;
    EXPECT_EQ(other.parts, parts) << heads;
    EXPECT_EQ(TakesBatch(other, 2), tiles == 1) << heads;
  }
}

// What wide.cu takes at a time of dealt positions, whatever the length of a sequence, next to what is planned.
TEST(AttentionPlan, DealtTilesFitWhatIsPlanned) {
  const GpuTraits gpu = test::H200();
  for (const auto& [heads, kv_heads, head_dim] :
       {std::array{32, 8, 128}, {64, 8, 128}, {8, 8, 64}, {4, 1, 128}, {16, 1, 64}}) {
    for (const int stripes : {2, 4, 8}) {
      for (const int64_t longest : {128, 4096, 65536, 131072, 1 << 20}) {
        AttentionShape shape = Shape(heads, kv_heads, head_dim, Halved());
        shape.swapped = true;
        shape.stripes = stripes;
        shape.longest = longest;
        const WidePlan plan = PlanWideTiles(gpu, shape).value();
        constexpr int64_t kRows = 2048;
        const int64_t planned = AttentionScratchBytes(gpu, shape, {kRows, 1, longest});
        for (int64_t length = kKeyBlock; length <= longest; length += (length / 16 / kKeyBlock + 1) * kKeyBlock) {
          const int64_t kv = WideKvHeads(gpu, shape, plan, length, length);
          for (int64_t round = 1; round <= kv; ++round) {
            const int64_t tiles = WideTiles(gpu, shape, plan, length, kv, round, length, kRows / kQueryTile + 1);
            const int64_t rows = tiles * round * (heads / kv_heads) * kQueryTile;
            const int64_t streams = WideStreamBytes(gpu, shape, plan, length, kv) + kv * length * 8;
            ASSERT_LE(streams + rows * (length * 2 + head_dim * 4 + 8), planned)
                << heads << " " << stripes << " " << longest << " " << length << " " << round;
          }
        }
      }
    }
  }
  // Of two devices: a window of 4096 at once, and no fewer tiles than fill the SMs of the longest sequence.
  AttentionShape llama = Shape(32, 8, 128, Halved());
  llama.swapped = true;
  llama.stripes = 2;
  llama.longest = 131072;
  const WidePlan plan = PlanWideTiles(gpu, llama).value();
  EXPECT_EQ(WideKvHeads(gpu, llama, plan, 4096, 4096), 8);
  EXPECT_EQ(WideTiles(gpu, llama, plan, 4096, 8, 8, 4096, 32), 32);
  EXPECT_EQ(WideKvHeads(gpu, llama, plan, 131072, 131072), 1);
  EXPECT_EQ(WideTiles(gpu, llama, plan, 131072, 1, 1, 131072, 1024), 8);
  llama.stripes = 4;
  EXPECT_EQ(WideTiles(gpu, llama, plan, 131072, 1, 1, 131072, 1024), kWideLeastTiles);
}

// Where a KV head's streams are more than a device's share, most words of values take no memory of their own.
TEST(AttentionPlan, StreamsOfDealtPositionsShareMemoryWhereTheyAreLong) {
  const GpuTraits gpu = test::H200();
  AttentionShape llama = Shape(32, 8, 128, Halved());
  llama.swapped = true;
  for (const auto& [stripes, longest_apart] : {std::array{2, 72817}, {4, 36408}, {8, 18204}}) {
    llama.stripes = stripes;
    const WidePlan plan = PlanWideTiles(gpu, llama).value();
    EXPECT_FALSE(SharesStreams(gpu, llama, plan, longest_apart)) << stripes;
    EXPECT_TRUE(SharesStreams(gpu, llama, plan, longest_apart + 1)) << stripes;
    EXPECT_EQ(WideStreamBytes(gpu, llama, plan, 8192, 2), 2 * 8192 * plan.position_bytes());
    EXPECT_EQ(WideStreamBytes(gpu, llama, plan, 131072, 1), 131072 * (plan.position_bytes() - plan.other_bytes));
  }
  // Other words are more than the keys of shorter streams.
  AttentionShape mixed = Shape(8, 8, 64, Halved(64));
  mixed.av = Halved(128);
  mixed.swapped = true;
  mixed.stripes = 8;
  const WidePlan plan = PlanWideTiles(gpu, mixed).value();
  EXPECT_GT(plan.other_bytes, plan.key_bytes);
  EXPECT_EQ(WideStreamBytes(gpu, mixed, plan, 131072, 1), 131072 * (plan.position_bytes() - plan.key_bytes));
}

// Groups are few blocks where positions are dealt; all of a pass together leave at most a tenth of the GPU idle.
TEST(AttentionPlan, DealtTilesFillTheGpu) {
  const GpuTraits gpu = test::H200();
  AttentionShape shape = Shape(4, 1, 128, Halved());
  shape.swapped = true;
  shape.longest = 131072;
  for (const int stripes : {2, 4}) {
    shape.stripes = stripes;
    const WidePlan plan = PlanWideTiles(gpu, shape).value();
    for (int64_t length = 16384; length <= shape.longest; length += 1920) {
      for (const int64_t tiles : {16, 32}) {
        int64_t taken = 0;
        for (int64_t left = tiles; left > 0;) {
          const int64_t count = WideTiles(gpu, shape, plan, length, 1, 1, length, left);
          const int64_t range = WideRange(gpu, count, length, kWideScoreStart);
          ASSERT_EQ(range % kKeyBlock, 0);
          ASSERT_GE(range, kMinWideRange);
          ASSERT_LT(range, length + kKeyBlock);
          taken += (count * ((length + range - 1) / range) + gpu.sm_count - 1) / gpu.sm_count * gpu.sm_count * range;
          left -= count;
        }
        EXPECT_GE(10 * tiles * length, 9 * taken) << stripes << " " << length << " " << tiles;
      }
    }
  }
}

// Blocks that take long to begin, as those of p v do, are few, yet most of the GPU is at work.
TEST(AttentionPlan, RangesOfWideTilesFillTheGpu) {
  const GpuTraits gpu = test::H200();
  EXPECT_EQ(WideRange(gpu, 40, 32768, kWideScoreStart), 2560);
  EXPECT_EQ(WideRange(gpu, 40, 32768, kWideValueStart), 11008);  // 120 blocks of 132 instead of five waves
  EXPECT_EQ(WideRange(gpu, 640, 2048, kWideValueStart), 2048);
  EXPECT_EQ(WideRange(gpu, 1, 128, kWideValueStart), 128);
  // Full grids: at least three fifths of the GPU where there is so much work.
  for (const int64_t start : {kWideScoreStart, kWideValueStart}) {
    for (int64_t length = 128; length <= 131072; length += 1920) {
      for (const int64_t blocks : {1, 8, 40, 64, 256, 300}) {
        const int64_t range = WideRange(gpu, blocks, length, start);
        EXPECT_EQ(range % kKeyBlock, 0);
        EXPECT_GE(range, std::min<int64_t>(kMinWideRange, length));
        EXPECT_LT(range, length + kKeyBlock);
        const int64_t items = blocks * ((length + range - 1) / range);
        if (blocks * length < 2 * 132 * kMinWideRange) continue;
        EXPECT_GE(blocks * length * 10, (items + 131) / 132 * 132 * std::min(range, length) * 6)
            << blocks << " " << length << " " << start;
      }
    }
  }
}

// As recorded from what wide.cu chose when it launched groups.
TEST(AttentionPlan, GroupsOfWideTiles) {
  GpuTraits gpu = test::H200();
  AttentionShape llama = Shape(32, 8, 128, Halved());
  llama.swapped = true;
  const WidePlan plan = PlanWideTiles(gpu, llama).value();
  const auto sums = [&](const AttentionShape& shape, int64_t tiles, int64_t stride) {
    return PlanWideGroup(gpu, shape, plan, tiles, 8, stride, stride).sums;
  };
  const WideGroupPlan group = PlanWideGroup(gpu, llama, plan, 5, 8, 32768, 32768);
  EXPECT_EQ(group.score_range, 2560);
  EXPECT_EQ(group.value_range, 11008);
  EXPECT_EQ(sums(llama, 80, 2048), WideSums::kOutputs);
  EXPECT_EQ(sums(llama, 1, 2048), WideSums::kMemory);
  EXPECT_EQ(sums(llama, 80, 4096), WideSums::kLists);
  // Rows with lengths of their own have no lists, and gains next to the ring of q k.
  AttentionShape mixed = llama;
  mixed.lengths = AttentionLengths::kByTile;
  EXPECT_EQ(sums(mixed, 80, 4096), WideSums::kOutputs);
  EXPECT_EQ(sums(mixed, 1, 4096), WideSums::kMemory);
  EXPECT_EQ(PlanWideTiles(gpu, mixed)->score_stages, plan.score_stages);
  EXPECT_EQ(PlanWideTiles(gpu, mixed)->score_shared_bytes, plan.score_shared_bytes + kWideGainBytes);
  // A ring that fills all but less than the gains has a stage less.
  gpu.max_shared_bytes = plan.score_shared_bytes + kWideStaticBytes + kWideGainBytes - 1;
  EXPECT_EQ(PlanWideTiles(gpu, llama)->score_stages, plan.score_stages);
  EXPECT_EQ(PlanWideTiles(gpu, mixed)->score_stages, plan.score_stages - 1);
}

TEST(AttentionPlan, ScratchHasABoundThatNoLengthRaises) {
  const GpuTraits gpu = test::H200();
  const AttentionShape shape = Shape(64, 8, 128, Halved());
  const auto bytes = [&](int64_t rows, int64_t sequences, int64_t context) {
    return AttentionScratchBytes(gpu, shape, {rows, sequences, context});
  };
  int64_t last = 0;
  for (int64_t context = 64; context <= 131072; context *= 2) {
    const int64_t now = bytes(512, 32, context);
    EXPECT_GE(now, last) << context;
    last = now;
  }
  // Twice the scores of a group, streams of K and V or the packed sequence (4 bytes a position, KV head and dimension),
  // queries, scales.
  EXPECT_LE(bytes(2048, 1, 131072),
            2 * test::H200().max_score_bytes + (int64_t{131072} * 8 * (4 * 128 + 8)) + (64 << 20));
  EXPECT_LE(bytes(2048, 128, 131072),
            2 * test::H200().max_score_bytes + (int64_t{131072} * 8 * (4 * 128 + 8)) + (64 << 20));
  // A decoding pass alone: its scores, and what the blocks of the GPU hand to each other.
  EXPECT_LE(bytes(1, 1, 8192), (64 * 8192 * 4) + (132 * 8 * 128 * 4) + (1 << 19));
  // Scores of rows wait in memory: at most 256 MiB, or one row.
  EXPECT_LE(bytes(8, 8, 131072), (int64_t{256} << 20) + (4 << 20));
}

}  // namespace
}  // namespace stoch
