// Plans of attention over GPUs that nobody has to own.
#include "kernels/plan/attention_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/sc/sc_config.h"
#include "tests/kernels/plan/gpu_models.h"

namespace stoch {
namespace {

ScTraits Halved(int stoc_len = 0) {
  ScConfig config;
  config.halve = true;
  config.stoc_len = stoc_len;
  return MakeScTraits(*MakeScOperator(config));
}

AttentionShape Shape(int heads, int kv_heads, int head_dim, const ScTraits& sc,
                     AttentionMode mode = AttentionMode::kPerToken) {
  AttentionShape shape;
  shape.mode = mode;
  shape.num_heads = heads;
  shape.num_kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.qk = shape.av = sc;
  return shape;
}

TEST(AttentionPlan, FitsEveryGpu) {
  const std::vector<ScTraits> operators = {Halved(), Halved(64), MakeScTraits(*MakeScOperator(ScConfig{}))};
  for (const test::GpuModel& gpu : test::GpuModels()) {
    for (const ScTraits& sc : operators) {
      for (const int head_dim : {16, 64, 80, 128, 256}) {
        for (const int heads : {1, 8, 32, 64}) {
          const AttentionShape shape = Shape(heads, std::max(1, heads / 4), head_dim, sc);
          SCOPED_TRACE(gpu.name + " head_dim " + std::to_string(head_dim) + " heads " + std::to_string(heads));
          const ScTilePlan tiles = PlanScTiles(gpu.traits, shape);
          EXPECT_EQ(tiles.supported, sc.stoc_len <= 128 && (head_dim == 64 || head_dim == 128));
          EXPECT_LE(tiles.score_shared_bytes, gpu.traits.max_shared_bytes);
          EXPECT_LE(tiles.value_shared_bytes, gpu.traits.max_shared_bytes);
          EXPECT_LE(int64_t{tiles.max_kept_floats} * kSoftmaxWarps * 4, gpu.traits.max_shared_bytes);
          EXPECT_EQ(tiles.max_kept_floats % 128, 0);
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
  const ScTilePlan tiles = PlanScTiles(gpu, llama);
  EXPECT_TRUE(tiles.supported);
  EXPECT_EQ(tiles.score_rows, 64);
  EXPECT_EQ(tiles.score_shared_bytes, 147456);
  EXPECT_TRUE(tiles.table_in_shared);
  EXPECT_EQ(tiles.value_shared_bytes, 131072);
  EXPECT_EQ(tiles.max_kept_floats, 8192);
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

TEST(AttentionPlan, SmallSharedMemoryHasExactFallbacks) {
  const ScTilePlan plan = PlanScTiles(test::TraitsOf(89, 128, 99, 89), Shape(32, 8, 128, Halved()));
  EXPECT_TRUE(plan.supported);
  EXPECT_EQ(plan.score_rows, 32);
  EXPECT_EQ(plan.score_shared_bytes, 73728);
  EXPECT_FALSE(plan.table_in_shared);
  EXPECT_EQ(plan.value_shared_bytes, 32768);
  EXPECT_EQ(plan.max_kept_floats, 6272);
}

TEST(AttentionPlan, ClustersNeedCodeThatHasThem) {
  const AttentionShape shape = Shape(32, 8, 128, Halved());
  EXPECT_EQ(PlanScRows(test::TraitsOf(100, 148, 227, 80), shape, 1, 5000).cluster, 1);
  EXPECT_EQ(PlanScRows(test::TraitsOf(100, 148, 227, 100), shape, 1, 5000).cluster, 8);
  EXPECT_EQ(HalfRowCluster(test::TraitsOf(100, 148, 227, 80), shape, 1, 5000), 1);
  EXPECT_EQ(HalfRowCluster(test::TraitsOf(90, 132, 227, 90), shape, 1, 5000), 8);
}

TEST(AttentionPlan, WhoRuns) {
  const GpuTraits gpu = test::H200();
  const AttentionShape shape = Shape(32, 8, 128, Halved());
  const AttentionPlan fresh = PlanAttention(gpu, shape, 8, false);
  EXPECT_TRUE(fresh.is_fresh);
  EXPECT_EQ(fresh.long_rows, AttentionKernel::kScRows);
  EXPECT_EQ(PlanAttention(gpu, shape, 512, false).long_rows, AttentionKernel::kScTiles);
  EXPECT_EQ(PlanAttention(gpu, shape, 512, false).short_rows, AttentionKernel::kScRows);
  EXPECT_EQ(PlanAttention(gpu, shape, 512, true).long_rows, AttentionKernel::kScRows);
  EXPECT_EQ(PlanAttention(gpu, Shape(4, 4, 80, Halved()), 512, false).long_rows, AttentionKernel::kScRows);
  EXPECT_FALSE(PlanAttention(gpu, Shape(32, 8, 128, Halved(), AttentionMode::kPerRow), 8, false).is_fresh);
  AttentionShape half;
  half.precision = Precision::kFp16;
  half.head_dim = 128;
  EXPECT_EQ(PlanAttention(gpu, half, 512, false).long_rows, AttentionKernel::kHalfTiles);
  EXPECT_EQ(PlanAttention(gpu, half, 1, true).short_rows, AttentionKernel::kHalfRows);
  half.precision = Precision::kFp32;
  EXPECT_EQ(PlanAttention(gpu, half, 512, false).long_rows, AttentionKernel::kExactRows);
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
  // A window of 2048 of an 8B model is one group; a tile of 70B at 131072 is cut by heads.
  EXPECT_EQ(CutTiles(test::H200(), Shape(32, 8, 128, Halved()), 2048, 32).tiles, 32);
  EXPECT_EQ(CutTiles(test::H200(), Shape(64, 8, 128, Halved()), 131072, 8).heads, 40);
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
  // Twice the scores of a group, the packed sequence (4 bytes a position, KV head and dimension), queries, scales.
  EXPECT_LE(bytes(2048, 1, 131072),
            2 * test::H200().max_score_bytes + (int64_t{131072} * 8 * (4 * 128 + 8)) + (64 << 20));
  EXPECT_LE(bytes(2048, 128, 131072),
            2 * test::H200().max_score_bytes + (int64_t{131072} * 8 * (4 * 128 + 8)) + (64 << 20));
  EXPECT_LE(bytes(1, 1, 8192), 1 << 20);  // a decoding pass alone
  // Beyond what shared memory holds, scores of rows spill: at most 256 MiB, or one row.
  EXPECT_LE(bytes(8, 8, 131072), (int64_t{256} << 20) + (1 << 20));
}

}  // namespace
}  // namespace stoch
