// SPDX-License-Identifier: Apache-2.0
// Which way columns go between GPUs, for GPUs that need not be there.
#include <gtest/gtest.h>

#include "kernels/plan/gather.h"

namespace stoch::test {
namespace {

constexpr GatherShape kStep = {
    .rows = 1, .widest = 4096, .has_vectors = true, .all_receive = true, .is_recorded = true};

TEST(GatherPlan, TakesPacketsForWhatARecordedStepGives) {
  const GatherLaunch launch = PlanGather(kStep);
  EXPECT_EQ(launch.route, GatherRoute::kPackets);
  EXPECT_EQ(launch.blocks, 8);  // of 512 floats
}

TEST(GatherPlan, TakesStoresWherePacketsDoNotFit) {
  GatherShape many = kStep;
  many.rows = 8;  // 64 blocks
  EXPECT_EQ(PlanGather(many).route, GatherRoute::kPackets);
  EXPECT_EQ(PlanGather(many).blocks, kMaxGatherBlocks);
  many.rows = 9;
  EXPECT_EQ(PlanGather(many).route, GatherRoute::kVectors);
  EXPECT_EQ(PlanGather(many).blocks, 18);  // of 2048 floats
  for (bool GatherShape::*const needed : {&GatherShape::is_recorded, &GatherShape::all_receive}) {
    GatherShape other = kStep;
    other.*needed = false;
    EXPECT_EQ(PlanGather(other).route, GatherRoute::kVectors);
    EXPECT_EQ(PlanGather(other).blocks, 2);
  }
}

TEST(GatherPlan, StoresSingleFloatsWhereRowsAreNoVectors) {
  GatherShape odd = kStep;
  odd.has_vectors = false;
  EXPECT_EQ(PlanGather(odd).route, GatherRoute::kElements);
}

TEST(GatherPlan, HasAtLeastOneBlockAndNoMoreThanFlags) {
  EXPECT_EQ(PlanGather({.rows = 0, .widest = 4096}).blocks, 1);
  EXPECT_EQ(PlanGather({.rows = 8192, .widest = 28672, .has_vectors = true}).blocks, kMaxGatherBlocks);
}

}  // namespace
}  // namespace stoch::test
