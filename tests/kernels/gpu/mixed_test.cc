// SPDX-License-Identifier: Apache-2.0
// Mixed lengths, protected channels, smoothing, integers and multiplier tables give the CPU's bits on the GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/runtime/gpu_probe.h"
#include "kernels/op_observer.h"
#include "kernels/plan/linear/sc.h"
#include "kernels/registry.h"
#include "tests/kernels/attention_scenario.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/gpu/cuda_or_skip.h"
#include "tests/kernels/gpu/mixed_cases.h"
#include "tests/kernels/random_floats.h"

namespace stoch {
namespace {

using test::ExpectedRoutes;
using test::LinearCase;
using test::LinearCases;
using test::MakeExtras;
using test::MixedConfig;
using test::OddTable;
using test::RowRule;

void ExpectSame(const std::vector<float>& expected, const std::vector<float>& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  double norm = 0;
  size_t wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    norm += std::fabs(expected[i]);
    if (FloatToBits(expected[i]) != FloatToBits(actual[i]) && wrong++ == 0) {
      ADD_FAILURE() << "first at " << i << ": expected " << expected[i] << ", got " << actual[i];
    }
  }
  EXPECT_EQ(wrong, 0u) << "of " << expected.size();
  EXPECT_GT(norm, 0.0);
}

constexpr int64_t kCols = test::kMixedCols;

// The output of one call of a weight of each spec, with a norm before it. many: outputs of each, otherwise few.
std::vector<float> RunSpecs(Backend& backend, const std::vector<LinearSpec>& specs, int64_t rows, bool add, bool graph,
                            int64_t cols = kCols, Prologue prologue = Prologue::kRmsNorm, int64_t many = 0) {
  const Device device = backend.devices()[0];
  LinearCall call;
  call.site = {3, "test_proj"};
  call.prologue = prologue;
  call.add_to_out = add;
  call.norm_eps = 1e-5f;
  std::vector<std::unique_ptr<LinearWeight>> weights;
  std::vector<test::DeviceTensor> outs;
  outs.reserve(specs.size());
  constexpr int64_t kOutFeatures[] = {70, 33, 48, 5};
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t out_features = many > 0 ? many : kOutFeatures[i];
    const std::vector<float> numbers =
        test::RandomFloats(100 + static_cast<uint64_t>(out_features), out_features * cols);
    WeightSource source;
    source.name = "w";
    source.rows = out_features;
    source.cols = cols;
    source.host = numbers.data();
    weights.push_back(backend.MakeLinear(device, {&source, 1}, specs[i]));
    call.weights.push_back(weights.back().get());
    outs.emplace_back(backend, std::vector<int64_t>{rows, out_features}, test::RandomFloats(200, rows * out_features));
    call.outs.push_back(outs.back().view());
  }
  // Rows of different sizes, so that lengths differ.
  std::vector<float> x_values = test::RandomFloats(7, rows * cols);
  const test::DeviceTensor x(backend, {rows, cols}, x_values);
  const test::DeviceTensor norm(backend, {cols}, test::RandomFloats(9, cols));
  const test::DeviceTensor x2(backend, {rows, cols}, test::RandomFloats(11, rows * cols));
  call.x = x.view();
  if (prologue == Prologue::kRmsNorm) call.norm_weight = norm.view();
  if (prologue == Prologue::kSiluMul) call.x2 = x2.view();
  for (int i = 0; i < (graph ? 3 : 1); ++i)
    backend.RunGraph(device, graph ? "mixed" : "", [&] { backend.Linear(call); });
  backend.CheckFinite(device);
  std::vector<float> result;
  for (const test::DeviceTensor& out : outs) {
    const std::vector<float> values = out.Read();
    result.insert(result.end(), values.begin(), values.end());
  }
  return result;
}

std::vector<float> RunLinear(Backend& backend, const LinearSpec& spec, int64_t rows, bool add, bool graph) {
  return RunSpecs(backend, {spec, spec}, rows, add, graph);
}

// One row is a decode step; some more look a weight up once for all of them; many are one product on tensor cores, or
// sorted by length.
TEST(CudaMixed, LinearsHaveTheBitsOfTheCpu) {
  STOCH_CUDA_OR_SKIP();
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  for (const LinearCase& c : LinearCases()) {
    const ExpectedRoutes routes(c);
    for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 40, 128, 129, 200}) {
      SCOPED_TRACE(std::string(c.name) + ", rows " + std::to_string(rows));
      const std::string kernel = cuda->LinearKernel(c.spec, std::vector<int64_t>{70, 33}, kCols, rows);
      const std::optional<LinearRoute> expected = routes.At(cuda::ProbeGpu(0), rows);
      if (expected) {
        EXPECT_TRUE(kernel.starts_with(LinearRouteName(*expected))) << kernel;
      }
      ExpectSame(RunLinear(*cpu, c.spec, rows, false, false), RunLinear(*cuda, c.spec, rows, false, false));
    }
    SCOPED_TRACE(c.name);
    for (const int64_t rows : {4, 20, 33, 140}) {
      ExpectSame(RunLinear(*cpu, c.spec, rows, true, false), RunLinear(*cuda, c.spec, rows, true, false));
    }
  }
}

// Recorded, a prompt cannot be sorted on the host; its bits are the same.
TEST(CudaMixed, GraphsHaveTheSameBits) {
  STOCH_CUDA_OR_SKIP();
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  for (const LinearCase& c : LinearCases()) {
    for (const int64_t rows : {2, 7, 14, 27, 40, 140}) {
      SCOPED_TRACE(std::string(c.name) + ", rows " + std::to_string(rows));
      const auto cuda = OpenBackend("cuda:0", {}, nullptr);
      ExpectSame(RunLinear(*cpu, c.spec, rows, false, false), RunLinear(*cuda, c.spec, rows, false, true));
    }
  }
}

// A single column of outputs may have any stride; what lies between its numbers stays as it is. Few rows and so many that
// they are sorted, at lengths by the rule and at given ones.
TEST(CudaMixed, AProductOfOneOutputTakesAnyStride) {
  STOCH_CUDA_OR_SKIP();
  const ScConfig config = MixedConfig(128);
  const ScOperatorPtr op = MakeScOperator(config);
  const ScExtrasPtr extras = MakeExtras(config, RowRule({128, 64, 24}));
  const auto run = [&](Backend& backend, int64_t rows, const std::vector<int>& lengths) {
    const test::DeviceTensor a(backend, {rows, kCols}, test::RandomFloats(7, rows * kCols));
    const test::DeviceTensor b(backend, {1, kCols}, test::RandomFloats(8, kCols));
    const test::DeviceTensor all(backend, {rows, 3}, test::RandomFloats(9, rows * 3));
    TensorView out = all.view();
    out.shape[1] = 1;
    out.stride[1] = 5;
    backend.ScMixedMatmul(a.view(), b.view(), op, *extras, lengths, out);
    backend.CheckFinite(backend.devices().front());
    return all.Read();
  };
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  for (const int64_t rows : {1, 3, 40}) {
    std::vector<int> lengths(static_cast<size_t>(rows), 64);
    lengths.front() = 24;
    for (const std::vector<int>& given : {std::vector<int>{}, lengths}) {
      SCOPED_TRACE(std::to_string(rows) + (given.empty() ? " rows by the rule" : " rows at given lengths"));
      ExpectSame(run(*cpu, rows, given), run(*cuda, rows, given));
    }
  }
}

// Weights of one call whose rules differ have tables of their own; those of equal rules share a launch.
TEST(CudaMixed, RulesOfOneCallDiffer) {
  STOCH_CUDA_OR_SKIP();
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  const ScConfig config = MixedConfig(128);
  const auto spec = [&](std::vector<int> levels, float hi) {
    auto rule = RowRule(std::move(levels));
    rule->hi = hi;
    return LinearSpec{Precision::kSc, MakeScOperator(config), MakeExtras(config, rule)};
  };
  const std::vector<LinearSpec> specs = {spec({128, 64, 24}, 40.0f), spec({128, 64, 24}, 20.0f),
                                         spec({128, 64, 24}, 40.0f), spec({96, 0, 32}, 40.0f)};
  for (const int64_t rows : {1, 3, 6, 13, 20}) {
    SCOPED_TRACE(rows);
    ExpectSame(RunSpecs(*cpu, specs, rows, false, false), RunSpecs(*cuda, specs, rows, false, false));
  }
  // So many outputs that blocks of the tensor-core kernel own tiles.
  ExpectSame(RunSpecs(*cpu, {specs[0]}, 18, true, false, 140, Prologue::kRmsNorm, 22600),
             RunSpecs(*cuda, {specs[0]}, 18, true, false, 140, Prologue::kRmsNorm, 22600));
}

// Keeps the lengths of rows that a backend shows.
class LengthsSeen : public OpObserver {
 public:
  void OnLengths(const ScLengthRecord& record) override { counts.emplace_back(CountsOf(record)); }
  std::vector<std::map<int, int>> counts;  // by weight: rows by length

 private:
  static std::map<int, int> CountsOf(const ScLengthRecord& record) {
    std::map<int, int> counts;
    for (const int length : record.lengths) ++counts[length];
    return counts;
  }
};

// Many rows: those whose lengths take as many words are a product of their own, of which rows of one length need no
// gains. Also of few rows in some groups, none in one, more than one tile in others, and of weights that share slots.
TEST(CudaMixed, PromptsRunInGroupsOfLengths) {
  STOCH_CUDA_OR_SKIP();
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  const ScConfig config = MixedConfig(128);
  const auto spec = [&](std::vector<int> levels, std::vector<float> thresholds, float hi) {
    auto rule = RowRule(std::move(levels));
    rule->thresholds = std::move(thresholds);
    rule->hi = hi;
    return LinearSpec{Precision::kSc, MakeScOperator(config), MakeExtras(config, rule)};
  };
  const std::vector<std::vector<LinearSpec>> calls = {
      {spec({128, 96, 64, 32}, {0.7f, 0.5f, 0.3f}, 30.0f), spec({128, 96, 64, 32}, {0.7f, 0.5f, 0.3f}, 30.0f)},
      {spec({128, 100, 64, 24, 0}, {0.7f, 0.5f, 0.4f, 0.3f}, 30.0f), spec({90, 64, 7}, {0.6f, 0.4f}, 30.0f)},
      {spec({128, 64, 32}, {100.0f, 0.5f}, 30.0f)},  // no row is so long
  };
  for (size_t c = 0; c < calls.size(); ++c) {
    for (const int64_t rows : {384, 385, 1300}) {
      SCOPED_TRACE("call " + std::to_string(c) + ", rows " + std::to_string(rows));
      const bool add = rows == 385;
      LengthsSeen seen;
      ASSERT_TRUE(cuda->ObserveLengths(&seen));
      const std::vector<float> actual = RunSpecs(*cuda, calls[c], rows, add, false, kCols, Prologue::kRmsNorm, 600);
      cuda->ObserveLengths(nullptr);
      ASSERT_EQ(seen.counts.size(), calls[c].size());
      // Weights that take other kernels, where the GPU has little shared memory, may be shown in another order.
      const auto& most = *std::max_element(seen.counts.begin(), seen.counts.end(),
                                           [](const auto& a, const auto& b) { return a.size() < b.size(); });
      EXPECT_GE(most.size(), c == 2 ? 2u : 4u);
      EXPECT_EQ(most.contains(128), c != 2);
      ExpectSame(RunSpecs(*cpu, calls[c], rows, add, false, kCols, Prologue::kRmsNorm, 600), actual);
    }
  }
}

// With lengths of (row, chunk) a tile of rows takes in each chunk what its longest length there takes: of several tiles,
// with chunks that are short in all rows, and with lengths whose ranks are in tables.
TEST(CudaMixed, PromptsRunChunksAtTheirLongestLengths) {
  STOCH_CUDA_OR_SKIP();
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  const ScConfig config = MixedConfig(128);
  const auto chunks = [&](std::vector<int> levels, std::vector<float> thresholds) {
    auto rule = RowRule(std::move(levels));
    rule->scope = ScLengthScope::kChunk;
    rule->thresholds = std::move(thresholds);
    return LinearSpec{Precision::kSc, MakeScOperator(config), MakeExtras(config, rule)};
  };
  const auto bands = [&](std::vector<int> of_chunks, std::vector<std::vector<int>> ladders) {
    auto rule = RowRule({128, 64, 32});
    rule->chunk_bands = std::move(of_chunks);
    rule->ladders = std::move(ladders);
    return LinearSpec{Precision::kSc, MakeScOperator(config), MakeExtras(config, rule)};
  };
  const std::vector<std::vector<LinearSpec>> calls = {
      {chunks({32, 64, 96, 128}, {0.2f, 0.4f, 0.9f}), chunks({32, 64, 96, 128}, {0.2f, 0.4f, 0.9f})},
      {chunks({0, 24, 80, 128}, {0.1f, 0.3f, 0.6f}), chunks({40, 64}, {0.5f})},
      {bands({0, 1, 2}, {{128, 128, 128}, {96, 64, 0}, {32, 32, 16}})},
      {chunks({30, 100}, {0.5f})},  // 100 has no ranks by formula: one product at that length
  };
  for (size_t c = 0; c < calls.size(); ++c) {
    for (const int64_t rows : {150, 500}) {
      SCOPED_TRACE("call " + std::to_string(c) + ", rows " + std::to_string(rows));
      const bool add = rows == 150;
      const auto run = [&](Backend& backend) {
        return RunSpecs(backend, calls[c], rows, add, false, kCols, Prologue::kRmsNorm, 600);
      };
      ExpectSame(run(*cpu), run(*cuda));
    }
  }
}

// Rows of more chunks than a block has warps: of few of them a cluster finds the largest.
TEST(CudaMixed, LongRowsHaveTheBitsOfTheCpu) {
  STOCH_CUDA_OR_SKIP();
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  for (const ScMetric metric : {ScMetric::kAmax, ScMetric::kL2}) {
    auto rule = RowRule({128, 64, 24});
    rule->metric = metric;
    rule->hi = metric == ScMetric::kAmax ? 60.0f : 500.0f;
    const std::vector<LinearSpec> specs = {
        {Precision::kSc, MakeScOperator(MixedConfig(128)), MakeExtras(MixedConfig(128), rule)}};
    for (const int64_t cols : {4224, 5000, 14336}) {
      for (const int64_t rows : {1, 3, 12, 35}) {
        SCOPED_TRACE(std::to_string(cols) + " columns, rows " + std::to_string(rows));
        ExpectSame(RunSpecs(*cpu, specs, rows, false, false, cols, Prologue::kSiluMul),
                   RunSpecs(*cuda, specs, rows, false, false, cols, Prologue::kSiluMul));
      }
    }
  }
}

std::vector<test::AttentionShape> AttentionCases() {
  std::vector<test::AttentionShape> shapes;
  const auto with = [&](const std::function<void(ScLengthRule*)>& edit) {
    test::AttentionShape shape;
    shape.qk = shape.av = MixedConfig(0);
    auto qk = RowRule({128, 64, 24});
    qk->hi = 6.0f;
    auto av = RowRule({128, 32, 8});
    av->hi = 1.0f;
    for (const auto& rule : {qk, av}) {
      if (edit) edit(rule.get());
    }
    shape.qk_extras = MakeExtras(shape.qk, qk);
    shape.av_extras = MakeExtras(shape.av, av);
    shapes.push_back(shape);
  };
  with({});
  with([](ScLengthRule* r) { r->metric = ScMetric::kCrest; });
  with([](ScLengthRule* r) { r->normalise = ScNormalise::kCall; });
  with([](ScLengthRule* r) {
    r->scope = ScLengthScope::kFractions;
    r->normalise = ScNormalise::kCall;
    r->fractions = {0.5, 0.25, 0.25};
  });
  for (const ScArith arith : {ScArith::kInt4, ScArith::kInt8}) {
    test::AttentionShape shape;
    shape.qk = shape.av = MixedConfig(0);
    shape.av.arith = arith;
    shape.av.chunk_d = 128;
    shapes.push_back(shape);
    shape.qk.arith = arith;
    shapes.push_back(shape);
  }
  test::AttentionShape table;
  table.qk.gate = ScGate::kTable;
  table.qk.table = "odd1";
  table.qk.multiplier = OddTable(1, true);
  table.av = table.qk;
  shapes.push_back(table);
  return shapes;
}

TEST(CudaMixed, AttentionHasTheBitsOfTheCpu) {
  STOCH_CUDA_OR_SKIP();
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  const test::Passes passes = {{{0, 70}, {1, 5}}, {{0, 1}, {1, 1}}, {{1, 58}, {0, 1}}, {{0, 40}}};
  size_t index = 0;
  for (const test::AttentionShape& shape : AttentionCases()) {
    for (const int head_dim : {16, 64, 128}) {
      SCOPED_TRACE("case " + std::to_string(index) + ", head_dim " + std::to_string(head_dim));
      test::AttentionShape sized = shape;
      sized.head_dim = head_dim;
      sized.num_heads = 4;
      sized.num_kv_heads = 2;
      EXPECT_EQ(test::Differences(test::RunAttention(*cpu, sized, passes), test::RunAttention(*cuda, sized, passes)),
                "");
    }
    ++index;
  }
}

// Contexts beyond one block, with lengths of 0 and 256 and every metric.
TEST(CudaMixed, DeepAttentionHasTheBitsOfTheCpu) {
  STOCH_CUDA_OR_SKIP();
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  const test::Passes passes = {{{0, 255}}, {{0, 1}}, {{0, 1}, {1, 700}}, {{1, 1}, {0, 3}}, {{0, 900}}, {{0, 1}}};
  for (const ScMetric metric : {ScMetric::kAmax, ScMetric::kL2, ScMetric::kCrest}) {
    test::AttentionShape shape;
    shape.qk = shape.av = MixedConfig(0);
    shape.qk.halve = shape.av.halve = false;
    auto qk = RowRule({256, 64, 0});
    qk->hi = metric == ScMetric::kAmax ? 4.0f : metric == ScMetric::kL2 ? 30.0f : 0.5f;
    auto av = RowRule({256, 32, 8});
    av->hi = metric == ScMetric::kCrest ? 1.0f : 0.1f;
    qk->metric = av->metric = metric;
    shape.qk_extras = MakeExtras(shape.qk, qk);
    shape.av_extras = MakeExtras(shape.av, av);
    shape.head_dim = 128;
    shape.num_heads = 4;
    shape.num_kv_heads = 2;
    shape.max_context = 2048;
    EXPECT_EQ(test::Differences(test::RunAttention(*cpu, shape, passes), test::RunAttention(*cuda, shape, passes)), "")
        << static_cast<int>(metric);
  }
}

// Prompts by tiles on tensor cores, where the GPU has wgmma: lengths that end inside a word, 0, and none beyond 64 (shorter
// streams of K and V); heads that share keys, and contexts that several blocks take; then steps by the row kernel.
TEST(CudaMixed, PromptAttentionHasTheBitsOfTheCpu) {
  STOCH_CUDA_OR_SKIP();
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  struct Case {
    std::vector<int> levels;
    ScMetric metric;
    int head_dim, num_heads, num_kv_heads, window;
    float qk_hi, av_hi;
    test::Passes passes;
  };
  const test::Passes one = {{{0, 300}}, {{0, 1}}, {{0, 170}}};
  const test::Passes several = {{{0, 70}, {1, 5}, {2, 131}}, {{0, 1}, {1, 40}, {2, 1}}};
  const std::vector<Case> cases = {
      {{128, 96, 64}, ScMetric::kAmax, 128, 4, 1, 0, 8.0f, 0.3f, one},
      {{128, 96, 64}, ScMetric::kAmax, 128, 4, 1, 0, 8.0f, 0.3f, several},
      {{128, 64, 0}, ScMetric::kL2, 64, 4, 2, 0, 40.0f, 0.4f, one},
      {{96, 90, 7}, ScMetric::kCrest, 128, 3, 1, 0, 1.0f, 1.0f, several},
      {{64, 32, 8}, ScMetric::kAmax, 64, 8, 1, 0, 8.0f, 0.3f, several},
      {{64, 48, 0}, ScMetric::kL2, 128, 4, 1, 0, 40.0f, 0.4f, one},
      {{128, 96, 64}, ScMetric::kL2, 128, 4, 1, 100, 40.0f, 0.4f, one},
      {{128, 96, 64}, ScMetric::kAmax, 128, 4, 1, 0, 8.0f, 0.2f, {{{0, 1100}}}},
  };
  size_t index = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE("case " + std::to_string(index++));
    test::AttentionShape shape;
    shape.qk = shape.av = MixedConfig(0);
    auto qk = RowRule(c.levels);
    auto av = RowRule(c.levels);
    qk->hi = c.qk_hi;
    av->hi = c.av_hi;
    qk->metric = av->metric = c.metric;
    shape.qk_extras = MakeExtras(shape.qk, qk);
    shape.av_extras = MakeExtras(shape.av, av);
    shape.head_dim = c.head_dim;
    shape.num_heads = c.num_heads;
    shape.num_kv_heads = c.num_kv_heads;
    shape.window = c.window;
    shape.max_context = 1280;
    const test::AttentionRows expected = test::RunAttention(*cpu, shape, c.passes);
    EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda, shape, c.passes)), "");
    // Lengths do differ: neither all rows at the longest nor at the shortest give the same.
    for (const int length : {c.levels.front(), c.levels.back()}) {
      if (length == 0) continue;
      test::AttentionShape uniform = shape;
      uniform.qk_extras = uniform.av_extras = nullptr;
      uniform.qk.stoc_len = uniform.av.stoc_len = length;
      EXPECT_NE(test::Differences(expected, test::RunAttention(*cpu, uniform, c.passes)), "") << length;
    }
  }
}

// Lengths that depend on their row alone, in a graph and behind a sliding window.
TEST(CudaMixed, AttentionRunsInGraphsAndWindows) {
  STOCH_CUDA_OR_SKIP();
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  test::Passes steps = {{{0, 100}}};
  for (int i = 0; i < 6; ++i) steps.push_back({{0, 1}});
  test::AttentionShape shape = AttentionCases().front();
  const test::AttentionRows expected = test::RunAttention(*cpu, shape, steps);
  EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda, shape, steps, "mixed ")), "");
  shape.window = 70;
  const test::AttentionRows windowed = test::RunAttention(*cpu, shape, steps);
  EXPECT_NE(test::Differences(expected, windowed), "");
  EXPECT_EQ(test::Differences(windowed, test::RunAttention(*cuda, shape, steps)), "");
}

}  // namespace
}  // namespace stoch
