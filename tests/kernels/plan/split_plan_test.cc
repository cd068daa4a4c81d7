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

// Launches of an H200 for a context cut over all of it.
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
    EXPECT_EQ(PlanSplitParts(gpu, Shape(row.heads, row.kv_heads, row.head_dim, Halved()), 32768).kernel,
              SplitKernel::kParts);
    EXPECT_EQ(plan.block_heads, row.block_heads);
    EXPECT_EQ(plan.head_blocks, row.head_blocks);
    EXPECT_EQ(plan.score_blocks, row.score_blocks);
    EXPECT_EQ(plan.value_blocks, row.value_blocks);
    EXPECT_EQ(plan.score_shared_bytes, row.score_shared_bytes);
    EXPECT_EQ(plan.value_shared_bytes, row.value_shared_bytes);
    EXPECT_EQ(plan.softmax, SplitSoftmax::kByParts);
    EXPECT_TRUE(IsResident(plan.kernel));
  }
  const AttentionShape shape = Shape(32, 8, 128, Halved());
  EXPECT_EQ(PlanSplit(gpu, shape, 1, 4096).softmax, SplitSoftmax::kOneBlock);
  const AttentionShape per_row = Shape(32, 8, 128, Halved(), AttentionMode::kPerRow);
  EXPECT_EQ(PlanSplit(gpu, per_row, 1, 8192).kernel, SplitKernel::kNone);
  EXPECT_EQ(PlanSplit(gpu, Shape(32, 8, 80, Halved()), 1, 8192).kernel, SplitKernel::kNone);
}

// Where a block has more than 640 positions of one row, or 896 of several, q k is found by look-ups; streams of weights have
// room of their own up to some 4100, and of deeper rows and most batches none. Blocks with 16 masks, which are those of one row,
// have p v by first words.
TEST(SplitPlan, LookupsOfAnH200) {
  const GpuTraits gpu = test::H200();
  AttentionShape llama = Shape(32, 8, 128, Halved());
  llama.swapped = true;
  constexpr SplitKernel kPlain = SplitKernel::kResident;
  constexpr SplitKernel kLookup = SplitKernel::kLookup;
  constexpr SplitKernel kWords = SplitKernel::kLookupWords;
  struct Row {
    int64_t rows, length;
    SplitKernel kernel;
    int positions = 0;
    int64_t shared_bytes = 0;
  };
  for (const Row& row :
       {Row{1, kDeepContext, kPlain}, Row{1, kDeepContext + 1, kWords, 672, 231424},
        Row{1, kFarContext, kWords, 2048, 231424}, Row{1, 65536, kWords, 4096, 231552},
        Row{1, 81920, kWords, 5120, 231424}, Row{1, 131072, kWords, 8192, 231552}, Row{1, 262144, kWords, 8192, 231552},
        Row{2, kLongContext, kPlain}, Row{4, kLongContext, kLookup, 2304, 198656}, Row{8, 1024, kPlain},
        Row{8, kLongContext, kLookup, 4608, 202880}, Row{8, 8192, kLookup, 6144, 215168},
        Row{32, 8192, SplitKernel::kParts}}) {
    SCOPED_TRACE(std::to_string(row.rows) + " rows of " + std::to_string(row.length));
    const SplitPlan plan = PlanSplit(gpu, llama, row.rows, row.length);
    EXPECT_EQ(plan.kernel, row.kernel);
    if (row.positions == 0) continue;
    EXPECT_EQ(plan.positions, row.positions);
    EXPECT_EQ(plan.shared_bytes, row.shared_bytes);
  }
  AttentionShape unswapped = llama;
  unswapped.swapped = false;
  EXPECT_EQ(PlanSplit(gpu, unswapped, 1, 131072).kernel, SplitKernel::kLookup);
  // Exponentials are where the table was, also where fewer heads would leave room for more.
  for (const int heads : {8, 16, 24, 32}) {
    for (const int64_t rows : {1, 2, 8, 16}) {
      const SplitPlan plan = PlanSplit(gpu, Shape(heads, 8, 128, Halved()), rows, 131072);
      EXPECT_EQ(plan.kernel, SplitKernel::kLookup);
      EXPECT_EQ(plan.positions, kSplitLookupPositions) << heads << " heads, " << rows << " rows";
    }
  }
  EXPECT_EQ(PlanSplit(gpu, Shape(64, 8, 128, Halved()), 1, 65536).kernel, SplitKernel::kResident);  // eight heads
  EXPECT_EQ(PlanSplit(gpu, Shape(32, 8, 64, Halved()), 1, 65536).kernel, SplitKernel::kResident);
  EXPECT_EQ(PlanSplit(gpu, Shape(32, 8, 128, Halved(64)), 1, 65536).kernel, SplitKernel::kLookup);
}

// Rows that all fit the GPU at once are cut by blocks that wait for each other, from 257 positions on.
TEST(SplitPlan, RowsThatFitTheGpu) {
  const AttentionShape llama = Shape(32, 8, 128, Halved());
  const GpuTraits gpu = test::H200();
  struct Row {
    int64_t rows, length;
    int blocks, positions, masks;
    int64_t shared_bytes;
  };
  GpuTraits plain = gpu;  // without look-ups
  plain.lookup_from = 1 << 21;
  for (const Row& row :
       {Row{1, 257, 128, 32, 16, 68848}, Row{1, 32768, 128, 2048, 16, 117232}, Row{1, 131072, 128, 6784, 16, 230896},
        Row{1, 1 << 20, 128, 6784, 16, 230896}, Row{2, 4096, 132, 768, 0, 53744}, Row{8, 8192, 132, 6144, 0, 182768},
        Row{16, 6145, 132, 6400, 0, 188912}}) {
    SCOPED_TRACE(std::to_string(row.rows) + " rows of " + std::to_string(row.length));
    const SplitPlan plan = PlanSplit(plain, llama, row.rows, row.length);
    EXPECT_EQ(plan.kernel, SplitKernel::kResident);
    EXPECT_EQ(plan.blocks, row.blocks);
    EXPECT_EQ(plan.positions, row.positions);
    EXPECT_EQ(plan.masks, row.masks);
    EXPECT_EQ(plan.shared_bytes, row.shared_bytes);
  }
  EXPECT_EQ(PlanSplit(gpu, llama, 17, 6145).kernel, SplitKernel::kParts);
  const SplitPlan wide = PlanSplit(gpu, Shape(64, 8, 128, Halved()), 1, 32768);  // two tiles of query heads
  EXPECT_EQ(wide.shared_bytes, 32768 + 4352 + 16 * 32 + 32768 + 2048 * 40);
  EXPECT_EQ(PlanSplit(gpu, Shape(8, 2, 128, Halved()), 1, 32768).blocks, 32);
  // A warp finds the blocks of 32 rows at most.
  EXPECT_TRUE(IsResident(PlanSplit(gpu, Shape(4, 1, 128, Halved()), 32, 257).kernel));
  EXPECT_FALSE(IsResident(PlanSplit(gpu, Shape(4, 1, 128, Halved()), 33, 257).kernel));
  // A warp's positions share a page.
  AttentionShape paged = llama;
  paged.page_tokens = kSplitLookupTile;
  EXPECT_TRUE(IsResident(PlanSplit(gpu, paged, 1, 32768).kernel));
  paged.page_tokens = kSplitLookupTile / 2;
  EXPECT_FALSE(IsResident(PlanSplit(gpu, paged, 1, 32768).kernel));
  // Blocks that wait for each other have the GPU to themselves.
  GpuTraits shared = gpu;
  shared.is_shared = true;
  EXPECT_FALSE(IsResident(PlanSplit(shared, llama, 1, 32768).kernel));
}

}  // namespace
}  // namespace stoch
