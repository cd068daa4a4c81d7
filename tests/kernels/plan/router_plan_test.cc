// SPDX-License-Identifier: Apache-2.0
// How a router of experts runs, on GPUs that need not be there.
#include <gtest/gtest.h>

#include "kernels/plan/router.h"
#include "tests/kernels/plan/gpu_models.h"

namespace stoch::test {
namespace {

// Qwen3-30B-A3B's.
constexpr RouterShape kQwen = {.rows = 1, .experts = 128, .top_k = 8, .product_cols = 2048};

RouterRoute RouteOf(const RouterShape& shape, const GpuTraits& gpu = H200()) { return PlanRouter(gpu, shape).route; }

TEST(RouterPlan, FusesNormProductAndChoiceOfFewRows) {
  for (const GpuModel& model : GpuModels()) {
    SCOPED_TRACE(model.name);
    const RouterPlan one = PlanRouter(model.traits, kQwen);
    EXPECT_EQ(one.route, RouterRoute::kFusedBlock);
    EXPECT_EQ(one.shared_bytes, 2 * 2048 * 4);
    RouterShape few = kQwen;
    few.rows = 4;
    EXPECT_EQ(RouteOf(few, model.traits), RouterRoute::kFusedWarp);
    EXPECT_EQ(PlanRouter(model.traits, few).shared_bytes, 5 * 2048 * 4);
    few.rows = 5;
    EXPECT_EQ(RouteOf(few, model.traits), RouterRoute::kRows);
  }
}

TEST(RouterPlan, ChoosesAloneWhereTheProductIsNotItsOwn) {
  RouterShape alone = kQwen;
  alone.product_cols = 0;
  EXPECT_EQ(RouteOf(alone), RouterRoute::kRows);
  alone.top_k = 33;
  EXPECT_EQ(RouteOf(alone), RouterRoute::kLongRows);
  alone = kQwen;
  alone.experts = 257;
  EXPECT_EQ(RouteOf(alone), RouterRoute::kLongRows);
}

TEST(RouterPlan, LeavesABlocksChoiceToWarpsWhereItHasNoRoom) {
  RouterShape shape = kQwen;
  shape.top_k = 17;
  EXPECT_EQ(RouteOf(shape), RouterRoute::kFusedWarp);
  shape = kQwen;
  shape.experts = 129;
  EXPECT_EQ(RouteOf(shape), RouterRoute::kFusedWarp);
}

// All blocks of the fused kernel run at once, and rows fit their shared memory.
TEST(RouterPlan, FusesNothingThatDoesNotFitTheGpu) {
  GpuTraits small = H200();
  small.sm_count = 3;  // 96 experts
  EXPECT_EQ(RouteOf(kQwen, small), RouterRoute::kRows);
  RouterShape wide = kQwen;
  wide.rows = 4;
  wide.product_cols = 8192;
  EXPECT_EQ(RouteOf(wide), RouterRoute::kFusedWarp);
  GpuTraits limited = H200();
  limited.max_shared_bytes = 99 << 10;
  EXPECT_EQ(RouteOf(wide, limited), RouterRoute::kRows);
}

}  // namespace
}  // namespace stoch::test
