// SPDX-License-Identifier: Apache-2.0
// Plans of linears of floats over GPUs that need not be there.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "kernels/plan/linear/experts.h"
#include "kernels/plan/linear/float.h"
#include "tests/kernels/plan/gpu_models.h"

namespace stoch {
namespace {

constexpr std::array<int64_t, 1> kOut = {1000};

LinearOperand Operand(LinearKind kind, int value_bytes = 2) {
  LinearOperand weights;
  weights.kind = kind;
  weights.value_bytes = value_bytes;
  return weights;
}

std::string Route(const GpuTraits& gpu, LinearKind kind, int64_t cols, int64_t rows, const LinearPass& pass = {}) {
  return std::string(LinearRouteName(PlanLinear(gpu, Operand(kind), {rows, cols, kOut}, pass).route));
}

TEST(FloatPlan, FitsEveryGpu) {
  for (const test::GpuModel& gpu : test::GpuModels()) {
    for (const LinearKind kind : {LinearKind::kExact, LinearKind::kFixed, LinearKind::kHalf}) {
      for (const int64_t cols : {7, 104, 4096, 14336, 28672, 65536}) {
        for (int64_t rows = 1; rows <= 300; ++rows) {
          const LinearPlan plan = PlanLinear(gpu.traits, Operand(kind), {rows, cols, kOut});
          const std::string name = gpu.name + " " + std::to_string(cols) + " rows " + std::to_string(rows);
          ASSERT_LE(plan.shared_bytes + plan.static_bytes, gpu.traits.max_shared_bytes) << name;
          if (kind == LinearKind::kExact) {
            ASSERT_LE(plan.scratch_bytes(), ExactLinearScratchBytes(cols, rows)) << name;
          }
          if (kind == LinearKind::kFixed) {
            ASSERT_LE(plan.scratch_bytes(), FixedLinearScratchBytes(cols, rows)) << name;
          }
        }
      }
    }
  }
}

// Rows by shared memory: 227 KB (9.0, 10.0), 163 KB (8.0), 99 KB (8.6, 8.9, 12.0).
TEST(FloatPlan, ExactRowsBySharedMemory) {
  for (const test::GpuModel& gpu : test::GpuModels()) {
    EXPECT_EQ(Route(gpu.traits, LinearKind::kExact, 4096, 4), "exact vector") << gpu.name;
    EXPECT_EQ(Route(gpu.traits, LinearKind::kExact, 4096, 5), "exact batch") << gpu.name;
    EXPECT_EQ(Route(gpu.traits, LinearKind::kExact, 4096, 64), "exact batch") << gpu.name;
    EXPECT_EQ(Route(gpu.traits, LinearKind::kExact, 4096, 65), "exact tiles") << gpu.name;
    // One row of 28672 floats is 112 KB.
    EXPECT_EQ(Route(gpu.traits, LinearKind::kExact, 28672, 1),
              gpu.traits.max_shared_bytes > 28672 * 4 ? "exact vector" : "exact batch")
        << gpu.name;
  }
  const LinearShape shape{4, 14336, kOut};  // 56 KB a row
  EXPECT_EQ(PlanExactLinear(test::H200(), 2, shape).tile_tokens, 4);
  EXPECT_EQ(PlanExactLinear(test::TraitsOf(80, 108, 163, 80), 2, shape).tile_tokens, 2);
  EXPECT_EQ(PlanExactLinear(test::TraitsOf(86, 82, 99, 86), 2, shape).tile_tokens, 1);
}

TEST(FloatPlan, FixedPoint) {
  const GpuTraits gpu = test::H200();
  EXPECT_EQ(Route(gpu, LinearKind::kFixed, 4096, 1), "fixed vector");
  EXPECT_EQ(Route(gpu, LinearKind::kFixed, 4096, 1, {.only_largest = true}), "fixed screen");
  EXPECT_EQ(Route(gpu, LinearKind::kFixed, 4096, 2, {.only_largest = true}), "fixed vector");
  EXPECT_EQ(Route(gpu, LinearKind::kFixed, 4096, 8), "fixed vector");
  EXPECT_EQ(Route(gpu, LinearKind::kFixed, 4096, 9), "fixed wgmma");
}

// Tiles are multiplied by wgmma where a GPU runs it, and take the same memory either way.
TEST(FloatPlan, FixedTilesByWgmma) {
  const LinearShape shape{2048, 4096, kOut};
  for (const test::GpuModel& gpu : test::GpuModels()) {
    const bool wgmma = gpu.name == "H200" || gpu.name == "H200 with 99 KB";
    EXPECT_EQ(Route(gpu.traits, LinearKind::kFixed, 4096, 8), "fixed vector") << gpu.name;
    EXPECT_EQ(Route(gpu.traits, LinearKind::kFixed, 4096, 9), wgmma ? "fixed wgmma" : "fixed tiles") << gpu.name;
    const LinearPlan plan = PlanFixedLinear(gpu.traits, shape, {});
    EXPECT_EQ(plan.route, wgmma ? LinearRoute::kFixedWgmma : LinearRoute::kFixedTiles) << gpu.name;
    EXPECT_EQ(plan.shared_bytes, kFixedTileBytes) << gpu.name;
    EXPECT_EQ(plan.scratch_bytes(), PlanFixedLinear(test::H200(), shape, {}).scratch_bytes()) << gpu.name;
  }
}

TEST(FloatPlan, HalfBaseline) {
  for (const test::GpuModel& gpu : test::GpuModels()) {
    EXPECT_EQ(Route(gpu.traits, LinearKind::kHalf, 4096, 1), "half gemm") << gpu.name;
    EXPECT_EQ(Route(gpu.traits, LinearKind::kHalf, 4100, 1, {.aligned = false}), "half gemm") << gpu.name;
  }
}

TEST(FloatPlan, Experts) {
  const ExpertShape shape{.rows = 4, .row_slots = 2, .experts = 8, .in_features = 256, .out_features = 96};
  EXPECT_EQ(PlanExperts(test::H200(), Operand(LinearKind::kExact), shape).route, LinearRoute::kExactExpert);
  EXPECT_EQ(PlanExperts(test::H200(), Operand(LinearKind::kHalf), shape).route, LinearRoute::kHalfExpert);
}

}  // namespace
}  // namespace stoch
