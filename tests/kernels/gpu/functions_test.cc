// SPDX-License-Identifier: Apache-2.0
// Tables of functions (kernels/cuda/prologue/functions.h) give the CPU's bits in front of linears, in norms of heads and in
// the softmax of attention.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/math/nonlinear_table.h"
#include "kernels/registry.h"
#include "tests/kernels/attention_scenario.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/gpu/both_backends.h"
#include "tests/kernels/gpu/mixed_cases.h"
#include "tests/kernels/random_floats.h"

namespace stoch {
namespace {

using test::DeviceTensor;
using test::RandomFloats;

NonlinearTable Table(NonlinearFunction function, float lo, float hi) {
  constexpr int kPieces = 21;
  NonlinearTable table;
  table.function = function;
  for (int i = 0; i < kPieces; ++i) {
    const float x = lo + (hi - lo) * static_cast<float>(i) / kPieces;
    table.cuts.push_back(x);
    const float exact = function == NonlinearFunction::kSilu  ? Silu(x)
                        : function == NonlinearFunction::kExp ? Exp(x)
                                                              : 1.0f / std::sqrt(x);
    table.values.push_back(exact);
    table.slopes.push_back(0.1f * exact);
  }
  table.in_bits = 9;
  table.out_bits = 13;
  return table;
}

class CudaFunctions : public test::BothBackends {
 protected:
  static std::vector<float> RunLinear(Backend& backend, const LinearSpec& spec, Prologue prologue, int64_t rows,
                                      const NonlinearTable& table) {
    constexpr int64_t kCols = 300, kOut = 70;
    const Device device = backend.devices()[0];
    const std::vector<float> numbers = RandomFloats(100, kOut * kCols);
    WeightSource source;
    source.name = "w";
    source.rows = kOut;
    source.cols = kCols;
    source.host = numbers.data();
    const auto weight = backend.MakeLinear(device, {&source, 1}, spec);
    const DeviceTensor x(backend, {rows, 2 * kCols}, RandomFloats(7, rows * 2 * kCols));
    const DeviceTensor norm(backend, {kCols}, RandomFloats(9, kCols));
    const DeviceTensor out(backend, {rows, kOut}, RandomFloats(200, rows * kOut));
    LinearCall call;
    call.site = {3, "gate_up_proj"};
    call.prologue = prologue;
    call.x = Slice(x.view(), 1, 0, kCols);
    if (prologue == Prologue::kSiluMul) call.x2 = Slice(x.view(), 1, kCols, kCols);
    if (prologue == Prologue::kRmsNorm) call.norm_weight = norm.view();
    call.norm_eps = 1e-5f;
    call.table = &table;
    call.weights = {weight.get()};
    call.outs = {out.view()};
    call.add_to_out = true;
    // Three times: a graph is recorded the second time, and replayed. A graph is of these operands alone.
    static int graphs = 0;
    const std::string key = "linear " + std::to_string(graphs++);
    for (int i = 0; i < 3; ++i) backend.RunGraph(device, key, [&] { backend.Linear(call); });
    backend.CheckFinite(device);
    return out.Read();
  }
};

TEST_F(CudaFunctions, InFrontOfLinears) {
  const NonlinearTable silu = Table(NonlinearFunction::kSilu, -3, 3);
  const NonlinearTable rsqrt = Table(NonlinearFunction::kRsqrt, 1, 4);
  ScConfig integers;
  integers.arith = ScArith::kInt8;
  const LinearSpec specs[] = {{Precision::kFp32, nullptr},
                              {Precision::kSc, MakeScOperator(test::MixedConfig(128))},
                              {Precision::kSc, MakeScOperator(integers)}};
  for (size_t i = 0; i < std::size(specs); ++i) {
    for (const int64_t rows : {1, 9, 70}) {
      SCOPED_TRACE("case " + std::to_string(i) + ", " + std::to_string(rows) + " rows");
      EXPECT_TRUE(test::SameBits(RunLinear(*cpu_, specs[i], Prologue::kSiluMul, rows, silu),
                                 RunLinear(*cuda_, specs[i], Prologue::kSiluMul, rows, silu)));
      EXPECT_TRUE(test::SameBits(RunLinear(*cpu_, specs[i], Prologue::kRmsNorm, rows, rsqrt),
                                 RunLinear(*cuda_, specs[i], Prologue::kRmsNorm, rows, rsqrt)));
    }
  }
}

TEST_F(CudaFunctions, NormsOfHeads) {
  const NonlinearTable rsqrt = Table(NonlinearFunction::kRsqrt, 1, 4);
  for (const int64_t head_dim : {16, 64, 128, 300}) {
    const auto run = [&](Backend& backend) {
      const DeviceTensor x(backend, {9, 7 * head_dim + 3}, RandomFloats(5, 9 * (7 * head_dim + 3)));
      const DeviceTensor weight(backend, {head_dim}, RandomFloats(6, head_dim));
      NormHeadsCall call;
      call.site = {1, "qkv_proj"};
      call.head_dim = head_dim;
      call.eps = 1e-6f;
      call.q = Slice(x.view(), 1, 0, 5 * head_dim);
      call.k = Slice(x.view(), 1, 5 * head_dim, 2 * head_dim);
      call.q_weight = call.k_weight = weight.view();
      call.table = &rsqrt;
      backend.NormHeads(call);
      return x.Read();
    };
    EXPECT_TRUE(test::SameBits(run(*cpu_), run(*cuda_))) << head_dim;
  }
}

TEST_F(CudaFunctions, SoftmaxOfEveryMode) {
  const test::Passes passes = {{{0, 70}, {1, 5}}, {{0, 1}, {1, 1}}, {{1, 140}, {0, 1}}, {{0, 40}}, {{0, 1}, {1, 1}}};
  const NonlinearTable exp = Table(NonlinearFunction::kExp, -9, 0);
  for (const AttentionMode mode :
       {AttentionMode::kExact, AttentionMode::kPerToken, AttentionMode::kPerRow, AttentionMode::kPerHead}) {
    for (const int window : {0, 50}) {
      const std::string name = "mode " + std::to_string(static_cast<int>(mode)) + ", window " + std::to_string(window);
      for (const std::string& key : {std::string(), "graph of " + name}) {
        SCOPED_TRACE(name + ", " + key);
        test::AttentionShape shape;
        shape.mode = mode;
        shape.qk = shape.av = test::MixedConfig(0);
        shape.num_heads = 4;
        shape.num_kv_heads = 2;
        shape.head_dim = 64;
        shape.window = window;
        const test::AttentionRows exact = test::RunAttention(*cpu_, shape, passes);
        shape.exp_table = &exp;
        const test::AttentionRows expected = test::RunAttention(*cpu_, shape, passes);
        EXPECT_NE(test::Differences(exact, expected), "") << "the table does nothing";
        EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes, key)), "");
      }
    }
  }
}

// Contexts that are cut over the GPU, and scores beyond shared memory, without a table.
TEST_F(CudaFunctions, SoftmaxOfLongContexts) {
  const NonlinearTable exp = Table(NonlinearFunction::kExp, -9, 0);
  for (const AttentionMode mode : {AttentionMode::kExact, AttentionMode::kPerToken}) {
    test::AttentionShape shape;
    shape.mode = mode;
    shape.qk = shape.av = test::MixedConfig(0);
    shape.num_heads = 2;
    shape.head_dim = 64;
    shape.max_context = 9216;
    shape.exp_table = &exp;
    const test::Passes passes = {{{0, 9000}}, {{0, 1}}};
    EXPECT_EQ(
        test::Differences(test::RunAttention(*cpu_, shape, passes),
                          test::RunAttention(*cuda_, shape, passes, "long " + std::to_string(static_cast<int>(mode)))),
        "")
        << static_cast<int>(mode);
  }
}

}  // namespace
}  // namespace stoch
