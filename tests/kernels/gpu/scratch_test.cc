// SPDX-License-Identifier: Apache-2.0
// What linears say they take besides their operands is what plans count and what is reserved: nothing may come on top.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/linear/exact.h"
#include "kernels/cuda/linear/fixed.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/linear.h"
#include "kernels/cuda/weights/sc_memory.h"
#include "kernels/math/reduce.h"
#include "kernels/sc/sc_operator.h"
#include "tests/kernels/gpu/cuda_or_skip.h"

namespace stoch::cuda {
namespace {

Buffer Zeros(const DeviceContext& ctx, int64_t bytes) {
  Buffer buffer = AllocateDevice(ctx.device, static_cast<size_t>(bytes));
  STOCH_CUDA(cudaMemsetAsync(buffer.data(), 0, static_cast<size_t>(bytes), ctx.stream));
  return buffer;
}

// Reserves what one matrix says for up to `most` rows of x: products with 1 to `most` of them must leave it at that.
void ExpectEnough(const ScOperator& op, int64_t rows, int64_t cols, int64_t most) {
  DeviceContext ctx(0);
  ctx.workspace.Reserve(
      static_cast<size_t>(ScLinearScratchBytes(ctx.traits, MakeScTraits(op), cols, {&rows, 1}, most)));
  const int64_t reserved = ctx.workspace.bytes();
  ASSERT_GT(reserved, 0);
  ScLinearTask task;
  ScWeightView& weight = task.weight;
  weight.dims = MakeScDims(cols, op.config.chunk_d);
  weight.rows = rows;
  weight.rows_padded = (rows + kRowPadding - 1) / kRowPadding * kRowPadding;
  const Buffer codes = Zeros(ctx, weight.rows_padded * weight.dims.padded);
  const Buffer scales = Zeros(ctx, weight.dims.chunks * weight.rows_padded * 4);
  weight.codes = static_cast<const uint8_t*>(codes.data());
  weight.scales = static_cast<const float*>(scales.data());
  const Buffer x = Zeros(ctx, most * cols * 4);
  const Buffer out = Zeros(ctx, most * rows * 4);
  task.out = {static_cast<float*>(out.data()), rows, false};
  RowSource source;
  source.x = static_cast<const float*>(x.data());
  source.x_stride = cols;
  const SiteReporter reporter = ctx.Reporter({0, "scratch_test"});
  for (const int64_t tokens : {1,  2,  4,  5,   8,   9,   16,  17,  24,  25,  32,  33,  48, 49,
                               64, 65, 96, 100, 128, 129, 144, 145, 192, 200, 256, 257, 529}) {
    if (tokens > most) break;
    LaunchScLinear(ctx, op, source, tokens, cols, reporter, &task, 1);
    EXPECT_EQ(ctx.workspace.bytes(), reserved) << tokens << " of " << most << " rows of x";
  }
  STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
}

TEST(CudaScratch, LinearsTakeNoMoreThanTheySay) {
  STOCH_CUDA_OR_SKIP();
  std::vector<ScConfig> configs(4);  // L = 256, 128, 64, and scopes of several rows
  for (size_t i = 1; i < configs.size(); ++i) configs[i].halve = true;
  configs[2].stoc_len = 64;
  configs[3].group_a = 4;
  for (const ScConfig& config : configs) {
    const ScOperatorPtr op = MakeScOperator(config);
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{6144, 4096}, {4096, 14336}, {28672, 4096}, {40, 72}}) {
      for (const int64_t most : {1, 8, 20, 33, 80, 256, 529}) {
        SCOPED_TRACE(Describe(config) + ": " + std::to_string(rows) + " x " + std::to_string(cols));
        ExpectEnough(*op, rows, cols, most);
      }
    }
  }
}

// The same of exact matrices of 16-bit numbers, which are rows of zeros here.
void ExpectEnoughExact(bool fixed, int64_t rows, int64_t cols, int64_t most) {
  DeviceContext ctx(0);
  const int64_t bytes = fixed ? FixedLinearScratchBytes(cols, most) : ExactLinearScratchBytes(cols, most);
  ctx.workspace.Reserve(static_cast<size_t>(bytes));
  const int64_t reserved = ctx.workspace.bytes();
  ASSERT_GT(reserved, 0);
  ExactWeightView view;
  view.dtype = DType::kBF16;
  view.rows = rows;
  view.cols = cols;
  view.padded_cols = RoundUp(cols, int64_t{kDotLanes} * view.vector());
  FixedWeightView integers;
  integers.dtype = view.dtype;
  integers.rows = rows;
  integers.cols = cols;
  integers.padded_cols = view.padded_cols;
  const Buffer data = Zeros(ctx, integers.padded_rows() * view.padded_cols * 2);
  const Buffer scales = DeviceCopy(ctx.device, std::vector<float>(static_cast<size_t>(integers.padded_rows()), 1.0f));
  view.data = data.data();
  integers.data = data.data();
  integers.scales = static_cast<const float*>(scales.data());
  const Buffer x = Zeros(ctx, most * view.padded_cols * 4);
  const Buffer out = Zeros(ctx, most * rows * 4);
  const LinearOutput to{static_cast<float*>(out.data()), rows, false};
  RowSource source;
  source.x = static_cast<const float*>(x.data());
  source.x_stride = view.padded_cols;
  const SiteReporter reporter = ctx.Reporter({0, "scratch_test"});
  for (const int64_t tokens : {1, 2, 3, 8, 9, 64, 65, 200}) {
    if (tokens > most) break;
    if (fixed) {
      const LinearPlan plan = PlanFixedLinear(ctx.traits, {tokens, cols, {&rows, 1}}, {});
      LaunchFixedLinear(ctx, plan, source, tokens, integers, to, reporter);
    } else {
      const LinearPlan plan = PlanExactLinear(ctx.traits, 2, {tokens, cols, {&rows, 1}});
      LaunchExactLinear(ctx, plan, source.x, source.x_stride, tokens, view, to, reporter);
    }
    EXPECT_EQ(ctx.workspace.bytes(), reserved) << tokens << " of " << most << " rows of x";
  }
  STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
}

TEST(CudaScratch, ExactLinearsTakeNoMoreThanTheySay) {
  STOCH_CUDA_OR_SKIP();
  for (const bool fixed : {false, true}) {
    for (const int64_t cols : {72, 4096}) {
      for (const int64_t most : {1, 2, 5, 8, 33, 64, 100, 200}) {
        SCOPED_TRACE((fixed ? "integers, " : "floats, ") + std::to_string(cols) + " columns");
        ExpectEnoughExact(fixed, 300, cols, most);
      }
    }
  }
}

}  // namespace
}  // namespace stoch::cuda
