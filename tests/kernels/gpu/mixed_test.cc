// SPDX-License-Identifier: Apache-2.0
// Mixed lengths, protected channels, smoothing, integers and multiplier tables give the CPU's bits on the GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/runtime/gpu_probe.h"
#include "kernels/plan/sc_linear_plan.h"
#include "kernels/registry.h"
#include "tests/kernels/attention_scenario.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/gpu/cuda_or_skip.h"
#include "tests/kernels/random_floats.h"

namespace stoch {
namespace {

ScConfig Config(int64_t chunk_d) {
  ScConfig config;
  config.halve = true;
  config.chunk_d = chunk_d;
  return config;
}

// A table whose entries are products times `gain`, and T(0, b) = b: padding must not count.
MultiplierTablePtr OddTable(int gain, bool is_signed) {
  auto table = std::make_shared<MultiplierTable>();
  table->is_signed = is_signed;
  const int low = is_signed ? -128 : 0;
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) table->entries.push_back((a + low) * (b + low) * gain + (a + low == 0 ? b + low : 0));
  }
  return MultiplierTablePtr{std::move(table)};
}

// Lengths by amax with thresholds where the inputs above spread.
std::shared_ptr<ScLengthRule> RowRule(std::vector<int> levels) {
  auto rule = std::make_shared<ScLengthRule>();
  rule->lo = 0.0f;
  rule->hi = 40.0f;
  for (size_t i = 1; i < levels.size(); ++i) rule->thresholds.push_back(1.0f - 0.25f * static_cast<float>(i + 1));
  rule->levels = std::move(levels);
  return rule;
}

ScExtrasPtr Extras(const ScConfig& config, const std::shared_ptr<ScLengthRule>& rule,
                   const std::function<void(ScExtras*)>& edit = {}) {
  auto extras = std::make_shared<ScExtras>();
  extras->op = "test_proj";
  if (rule != nullptr) {
    extras->lengths = rule;
    extras->by_length = MakeScOperators(config, rule->Lengths());
  }
  if (edit) edit(extras.get());
  return extras;
}

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

constexpr int64_t kCols = 300;

struct LinearCase {
  const char* name;
  LinearSpec spec;
  bool decodes = false;  // few rows by the kernels of decode steps
  bool prompts = false;  // from 33 rows on by binary tensor cores, where the GPU has wgmma
  bool looks_up = true;  // of those that decode: 2 to 16 rows by look-ups that serve all of them
  bool batches = true;   // of those that prompt: 17 to 128 rows on tensor cores, up to 32 at a time
};

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

std::vector<LinearCase> LinearCases() {
  const ScConfig plain = Config(128);
  const auto rows = [&](const std::function<void(ScLengthRule*)>& edit, ScConfig config = Config(128)) {
    auto rule = RowRule({128, 64, 24});
    if (edit) edit(rule.get());
    config.stoc_len = 128;
    return LinearSpec{Precision::kSc, MakeScOperator(config), Extras(config, rule)};
  };
  std::vector<LinearCase> cases;
  cases.push_back({"rows", rows({}), true, true});
  cases.push_back({"pruned rows", rows([](ScLengthRule* r) { r->levels = {128, 64, 0}; }), true, true});
  cases.push_back({"short rows", rows([](ScLengthRule* r) { r->levels = {90, 64, 7}; }), true, true, true, false});
  ScConfig full = Config(128);
  full.halve = false;
  cases.push_back({"rows of up to 256",
                   rows(
                       [](ScLengthRule* r) {
                         r->levels = {256, 128, 48};
                       },
                       full),
                   true, false, false});
  cases.push_back({"l2 and sign", rows([](ScLengthRule* r) {
                     r->metric = ScMetric::kL2;
                     r->sign = -1.0f;
                     r->lo = -60.0f;
                     r->hi = 0.0f;
                   }),
                   true, true});
  cases.push_back({"crest and escape", rows([](ScLengthRule* r) {
                     r->metric = ScMetric::kCrest;
                     r->hi = 1.0f;
                     r->escapes = true;
                     r->escape_threshold = 0.4;
                     r->escape_len = 96;
                   }),
                   true, true});
  cases.push_back({"call", rows([](ScLengthRule* r) { r->normalise = ScNormalise::kCall; })});
  cases.push_back({"fractions", rows([](ScLengthRule* r) {
                     r->scope = ScLengthScope::kFractions;
                     r->normalise = ScNormalise::kCall;
                     r->fractions = {0.25, 0.5, 0.25};
                   })});
  cases.push_back({"chunks", rows([](ScLengthRule* r) {
                     r->scope = ScLengthScope::kChunk;
                     r->levels = {16, 64, 128};
                     r->thresholds = {0.1f, 0.3f};
                   }),
                   true, true});
  cases.push_back({"bands", rows([](ScLengthRule* r) {
                     r->chunk_bands = {1, 0, 1};
                     r->ladders = {{128, 96, 0}, {64, 32, 8}};
                   }),
                   true, true});
  ScConfig groups = Config(128);
  groups.group_a = 3;
  groups.group_b = 5;
  cases.push_back({"groups of rows", rows({}, groups)});
  ScConfig gate = Config(128);
  gate.gate = ScGate::kXnor;
  gate.halve = false;
  cases.push_back({"xnor", rows({}, gate)});
  const auto special = [&](const std::function<void(ScExtras*)>& edit) {
    return LinearSpec{Precision::kSc, MakeScOperator(plain), Extras(plain, RowRule({128, 48}), edit)};
  };
  const auto smooth = [](ScExtras* e) {
    for (int64_t i = 0; i < kCols; ++i) e->smooth.push_back(0.3f + 0.01f * static_cast<float>(i));
  };
  const auto own = [&](ScExtras* e) {
    e->protected_channels = {0, 5, 130, 299};
    ScConfig longest = plain;
    longest.stoc_len = 128;
    e->protected_op = MakeScOperator(longest);
  };
  cases.push_back({"smooth", special(smooth)});
  cases.push_back({"protected", special(own)});
  cases.push_back({"smooth and protected", special([&](ScExtras* e) {
                     smooth(e);
                     own(e);
                   })});
  for (const ScArith arith : {ScArith::kInt2, ScArith::kInt7, ScArith::kInt8}) {
    ScConfig config = Config(128);
    config.arith = arith;
    cases.push_back({"integers", {Precision::kSc, MakeScOperator(config)}});
  }
  for (const int gain : {1, 4}) {  // 4: entries beyond 16 bits
    ScConfig config;
    config.chunk_d = 128;
    config.gate = ScGate::kTable;
    config.table = "odd" + std::to_string(gain);
    config.multiplier = OddTable(gain, true);
    cases.push_back({"table", {Precision::kSc, MakeScOperator(config)}});
    config.table_code = ScTableCode::kUnsigned;
    config.table += "u";
    config.multiplier = OddTable(gain, false);
    config.mode = ScMode::kUnipolar;
    config.chunk_d = 0;
    cases.push_back({"unsigned table", {Precision::kSc, MakeScOperator(config)}});
  }
  return cases;
}

// The operator of a case's longest streams.
ScOperatorPtr Longest(const LinearSpec& spec) {
  ScOperatorPtr longest = spec.sc;
  if (spec.extras == nullptr) return longest;
  for (const ScOperatorPtr& one : spec.extras->by_length) {
    if (one != nullptr && (longest == spec.sc || one->config.stoc_len > longest->config.stoc_len)) longest = one;
  }
  return longest;
}

// What LinearKernel says of a case.
std::string ExpectedKernel(const Backend& cuda, const LinearCase& c, int64_t rows) {
  const LinearSpec plain{Precision::kSc, MakeScOperator(Config(128))};
  // Stages of shorter streams fit less shared memory.
  const ScOperatorPtr longest = Longest(c.spec);
  const bool wgmma = c.prompts && CanPrefillWgmma(cuda::ProbeGpu(0), MakeScTraits(*longest), true);
  // Their tables take 128 KB of shared memory, which some GPUs do not have.
  const bool table = cuda.LinearKernel(plain, std::vector<int64_t>{70, 33}, kCols, 8).starts_with("table");
  const bool batches = c.decodes && c.batches && longest->config.stoc_len == 128;
  if (batches && wgmma && rows >= 17 && rows <= 128) return "mixed batch-wgmma";
  if (c.decodes && c.looks_up && table && rows >= 2 && rows <= 128) return rows <= 4 ? "mixed few" : "mixed table";
  if (c.prompts && wgmma && rows >= 33) return "mixed prefill-wgmma";
  if (c.decodes && rows <= 32) return "mixed decode";
  return {};
}

// One row is a decode step; some more look a weight up once for all of them; many are one product on tensor cores, or
// sorted by length.
TEST(CudaMixed, LinearsHaveTheBitsOfTheCpu) {
  STOCH_CUDA_OR_SKIP();
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  for (const LinearCase& c : LinearCases()) {
    for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 40, 128, 129, 200}) {
      SCOPED_TRACE(std::string(c.name) + ", rows " + std::to_string(rows));
      const std::string kernel = cuda->LinearKernel(c.spec, std::vector<int64_t>{70, 33}, kCols, rows);
      const std::string expected = ExpectedKernel(*cuda, c, rows);
      EXPECT_EQ(kernel.starts_with("mixed ") ? kernel : "", expected);
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

// Weights of one call whose rules differ have tables of their own; those of equal rules share a launch.
TEST(CudaMixed, RulesOfOneCallDiffer) {
  STOCH_CUDA_OR_SKIP();
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  const ScConfig config = Config(128);
  const auto spec = [&](std::vector<int> levels, float hi) {
    auto rule = RowRule(std::move(levels));
    rule->hi = hi;
    return LinearSpec{Precision::kSc, MakeScOperator(config), Extras(config, rule)};
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

// Rows of more chunks than a block has warps: of few of them a cluster finds the largest.
TEST(CudaMixed, LongRowsHaveTheBitsOfTheCpu) {
  STOCH_CUDA_OR_SKIP();
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  for (const ScMetric metric : {ScMetric::kAmax, ScMetric::kL2}) {
    auto rule = RowRule({128, 64, 24});
    rule->metric = metric;
    rule->hi = metric == ScMetric::kAmax ? 60.0f : 500.0f;
    const std::vector<LinearSpec> specs = {{Precision::kSc, MakeScOperator(Config(128)), Extras(Config(128), rule)}};
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
    shape.qk = shape.av = Config(0);
    auto qk = RowRule({128, 64, 24});
    qk->hi = 6.0f;
    auto av = RowRule({128, 32, 8});
    av->hi = 1.0f;
    for (const auto& rule : {qk, av}) {
      if (edit) edit(rule.get());
    }
    shape.qk_extras = Extras(shape.qk, qk);
    shape.av_extras = Extras(shape.av, av);
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
    shape.qk = shape.av = Config(0);
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
    shape.qk = shape.av = Config(0);
    shape.qk.halve = shape.av.halve = false;
    auto qk = RowRule({256, 64, 0});
    qk->hi = metric == ScMetric::kAmax ? 4.0f : metric == ScMetric::kL2 ? 30.0f : 0.5f;
    auto av = RowRule({256, 32, 8});
    av->hi = metric == ScMetric::kCrest ? 1.0f : 0.1f;
    qk->metric = av->metric = metric;
    shape.qk_extras = Extras(shape.qk, qk);
    shape.av_extras = Extras(shape.av, av);
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
    shape.qk = shape.av = Config(0);
    auto qk = RowRule(c.levels);
    auto av = RowRule(c.levels);
    qk->hi = c.qk_hi;
    av->hi = c.av_hi;
    qk->metric = av->metric = c.metric;
    shape.qk_extras = Extras(shape.qk, qk);
    shape.av_extras = Extras(shape.av, av);
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
