// SPDX-License-Identifier: Apache-2.0
// Plans of attention whose contexts are cut over the GPU.
#include <gtest/gtest.h>

#include <string>

#include "kernels/context_bucket.h"
#include "tests/kernels/plan/attention_shapes.h"
#include "tests/kernels/plan/gpu_models.h"

namespace stoch {
namespace {

using test::Halved;
using test::Shape;

// What an H200 launches for a context cut over all of it.
TEST(SplitPlan, SplitsOfAnH200) {
  const GpuTraits gpu = test::H200();
  struct Row {
    int heads, kv_heads, head_dim;
    int block_heads, head_blocks, score_blocks, value_blocks;
    int64_t score_shared_bytes, value_shared_bytes;
  };
  for (const Row& row : {Row{32, 8, 128, 4, 1, 528, 528, 50240, 36912}, Row{64, 8, 128, 8, 1, 396, 528, 67712, 36912},
                         Row{28, 4, 128, 7, 1, 396, 528, 67712, 36912}, Row{32, 8, 64, 4, 1, 528, 528, 41536, 34864},
                         Row{64, 4, 128, 8, 2, 396, 528, 67712, 36912}, Row{8, 8, 128, 1, 1, 528, 528, 50240, 36912}}) {
    SCOPED_TRACE(std::to_string(row.heads) + " of " + std::to_string(row.kv_heads));
    const SplitPlan plan = PlanSplit(gpu, Shape(row.heads, row.kv_heads, row.head_dim, Halved()), 1, 32768);
    EXPECT_TRUE(plan.supported);
    EXPECT_EQ(plan.block_heads, row.block_heads);
    EXPECT_EQ(plan.head_blocks, row.head_blocks);
    EXPECT_EQ(plan.score_blocks, row.score_blocks);
    EXPECT_EQ(plan.value_blocks, row.value_blocks);
    EXPECT_EQ(plan.score_shared_bytes, row.score_shared_bytes);
    EXPECT_EQ(plan.value_shared_bytes, row.value_shared_bytes);
    EXPECT_FALSE(plan.is_one_block);
    EXPECT_FALSE(plan.is_fused);
    EXPECT_TRUE(plan.is_resident);
  }
  const AttentionShape shape = Shape(32, 8, 128, Halved());
  EXPECT_TRUE(PlanSplit(gpu, shape, 1, 4096).is_one_block);
  EXPECT_FALSE(PlanSplit(gpu, Shape(32, 8, 128, Halved(), AttentionMode::kPerRow), 1, 8192).supported);
  EXPECT_FALSE(PlanSplit(gpu, Shape(32, 8, 80, Halved()), 1, 8192).supported);
  const AttentionPlan far = PlanAttention(gpu, shape, 1, 4097, true);
  EXPECT_EQ(far.short_rows, AttentionKernel::kScSplit);
  EXPECT_FALSE(far.is_fresh);
}

// Where a block has more than 640 positions of one row, or 896 of several, q k is found by look-ups; streams of weights have
// room of their own up to some 4100, and of deeper rows and most batches none. Blocks with 16 masks, which are those of one row,
// have p v by first words.
TEST(SplitPlan, LookupsOfAnH200) {
  const GpuTraits gpu = test::H200();
  AttentionShape llama = Shape(32, 8, 128, Halved());
  llama.swapped = true;
  struct Row {
    int64_t rows, length;
    bool is_lookup;
    int positions;
    int64_t shared_bytes;
    bool has_words = false;
  };
  for (const Row& row :
       {Row{1, kDeepContext, false, 0, 0}, Row{1, kDeepContext + 1, true, 672, 231424, true},
        Row{1, kFarContext, true, 2048, 231424, true}, Row{1, 65536, true, 4096, 231552, true},
        Row{1, 81920, true, 5120, 231424, true}, Row{1, 131072, true, 8192, 231552, true},
        Row{1, 262144, true, 8192, 231552, true}, Row{2, kLongContext, false, 0, 0},
        Row{4, kLongContext, true, 2304, 198656}, Row{8, 1024, false, 0, 0}, Row{8, kLongContext, true, 4608, 202880},
        Row{8, 8192, true, 6144, 215168}, Row{32, 8192, false, 0, 0}}) {
    SCOPED_TRACE(std::to_string(row.rows) + " rows of " + std::to_string(row.length));
    const SplitPlan plan = PlanSplit(gpu, llama, row.rows, row.length);
    EXPECT_EQ(plan.is_lookup, row.is_lookup);
    EXPECT_EQ(plan.lookup_positions, row.positions);
    EXPECT_EQ(plan.lookup_shared_bytes, row.shared_bytes);
    EXPECT_EQ(plan.has_words, row.has_words);
  }
  AttentionShape unswapped = llama;
  unswapped.swapped = false;
  EXPECT_FALSE(PlanSplit(gpu, unswapped, 1, 131072).has_words);
  // Exponentials are where the table was, also where fewer heads would leave room for more.
  for (const int heads : {8, 16, 24, 32}) {
    for (const int64_t rows : {1, 2, 8, 16}) {
      const SplitPlan plan = PlanSplit(gpu, Shape(heads, 8, 128, Halved()), rows, 131072);
      EXPECT_TRUE(plan.is_lookup);
      EXPECT_EQ(plan.lookup_positions, kSplitLookupPositions) << heads << " heads, " << rows << " rows";
    }
  }
  EXPECT_FALSE(PlanSplit(gpu, Shape(64, 8, 128, Halved()), 1, 65536).is_lookup);  // eight heads
  EXPECT_FALSE(PlanSplit(gpu, Shape(32, 8, 64, Halved()), 1, 65536).is_lookup);
  EXPECT_TRUE(PlanSplit(gpu, Shape(32, 8, 128, Halved(64)), 1, 65536).is_lookup);
}

// Rows that all fit the GPU at once are cut by blocks that wait for each other, from 257 positions on.
TEST(SplitPlan, RowsThatFitTheGpu) {
  const AttentionShape llama = Shape(32, 8, 128, Halved());
  const GpuTraits gpu = test::H200();
  struct Row {
    int64_t rows, length;
    bool resident;
    int blocks, positions, masks;
    int64_t shared_bytes;
  };
  for (const Row& row : {Row{1, 257, true, 128, 32, 16, 68848}, Row{1, 32768, true, 128, 2048, 16, 117232},
                         Row{1, 131072, true, 128, 6784, 16, 230896}, Row{1, 1 << 20, true, 128, 6784, 16, 230896},
                         Row{2, 4096, true, 132, 768, 0, 53744}, Row{8, 8192, true, 132, 6144, 0, 182768},
                         Row{16, 6145, true, 132, 6400, 0, 188912}, Row{17, 6145, false, 0, 0, 0, 0}}) {
    SCOPED_TRACE(std::to_string(row.rows) + " rows of " + std::to_string(row.length));
    const SplitPlan plan = PlanSplit(gpu, llama, row.rows, row.length);
    EXPECT_EQ(plan.is_resident, row.resident);
    EXPECT_EQ(plan.resident_blocks, row.blocks);
    EXPECT_EQ(plan.resident_positions, row.positions);
    EXPECT_EQ(plan.resident_masks, row.masks);
    EXPECT_EQ(plan.resident_shared_bytes, row.shared_bytes);
  }
  const SplitPlan wide = PlanSplit(gpu, Shape(64, 8, 128, Halved()), 1, 32768);  // two tiles of query heads
  EXPECT_EQ(wide.resident_shared_bytes, 32768 + 4352 + 16 * 32 + 32768 + 2048 * 40);
  EXPECT_EQ(PlanSplit(gpu, Shape(8, 2, 128, Halved()), 1, 32768).resident_blocks, 32);
  EXPECT_FALSE(PlanSplit(gpu, Shape(4, 1, 128, Halved()), 33, 257).is_resident);  // find their blocks by a warp
  AttentionShape shared = llama;
  shared.alone = false;
  EXPECT_FALSE(PlanSplit(gpu, shared, 1, 32768).is_resident);
}

}  // namespace
}  // namespace stoch
