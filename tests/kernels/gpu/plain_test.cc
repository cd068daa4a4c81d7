// SPDX-License-Identifier: Apache-2.0
// The plain kernels (kernels/cuda/plain) give the CPU's bits in every setting that research has.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/registry.h"
#include "kernels/sc/sc_parameters.h"
#include "tests/kernels/attention_scenario.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/gpu/attention_fixture.h"
#include "tests/kernels/gpu/both_backends.h"
#include "tests/kernels/gpu/mixed_cases.h"
#include "tests/kernels/random_floats.h"
#include "tests/kernels/sc/config_with.h"

namespace stoch {
namespace {

using test::DeviceTensor;
using test::RandomFloats;
using test::With;

// Hardware that is not ideal, each alone and several together.
const char* const kHardware[] = {
    "fault_product=0.01",
    "fault_product=1",
    "fault_weight=0.02",
    "fault_activation=0.02",
    "acc_bits=14",
    "acc_bits=9,acc_group=8",
    "acc_bits=14,fault_acc=0.01",
    "acc_bits=15,fault_acc=0.3:3",
    "fault_product=0.02,fault_weight=0.01,fault_activation=0.01,acc_bits=16,fault_acc=0.05",
    "gate=and,fault_product=0.01",
    "arith=int8,acc_bits=18,fault_acc=0.01,fault_weight=0.01,fault_activation=0.01",
    "arith=int4,fault_weight=0.1",
    "adder=or,adder_group=4",
    "adder=apc,adder_group=6",
    "gate=and,adder=mux,adder_group=4",
    "adder=apc,adder_group=2,acc_bits=12,fault_acc=0.02,fault_weight=0.02",
};
const char* const kFormats[] = {"arith=fp8_e4m3", "arith=mxint8"};
// Of linears and products alone.
const char* const kWide[] = {
    "mode=unipolar,halve=0,fault_product=0.01,fault_weight=0.02,fault_activation=0.02",
    "mode=unipolar,halve=0,adder=or,adder_group=8",
    "gate=xnor,halve=0,fault_product=0.01,acc_bits=14",
    "gate=xnor,halve=0,fault_weight=0.02,fault_activation=0.02",
    "gate=xnor,halve=0,adder=mux,adder_group=6",
    "gate=xnor,halve=0,adder=apc,adder_group=4",
    "stoc_len=256,halve=0,adder=or,adder_group=3",
};

class CudaPlain : public test::BothBackends {
 protected:
  static std::vector<float> Product(Backend& backend, const ScConfig& config, const std::vector<int64_t>& shape_a,
                                    const std::vector<int64_t>& shape_b, bool column_major) {
    const auto count = [](const std::vector<int64_t>& shape) {
      int64_t numel = 1;
      for (const int64_t n : shape) numel *= n;
      return numel;
    };
    const DeviceTensor a(backend, shape_a, RandomFloats(3, count(shape_a)));
    const DeviceTensor b(backend, shape_b, RandomFloats(4, count(shape_b)));
    const size_t rank = shape_a.size();
    std::vector<int64_t> shape = shape_a;
    shape.back() = shape_b[rank - 2];
    if (column_major) std::swap(shape[rank - 1], shape[rank - 2]);
    const DeviceTensor out(backend, shape, std::vector<float>(static_cast<size_t>(count(shape)), 9.0f));
    TensorView y = out.view();
    if (column_major) {
      std::swap(y.shape[rank - 1], y.shape[rank - 2]);
      std::swap(y.stride[rank - 1], y.stride[rank - 2]);
    }
    backend.ScMatmul(a.view(), b.view(), *MakeScOperator(config), y);
    backend.CheckFinite(backend.devices()[0]);
    return out.Read();
  }
};

TEST_F(CudaPlain, Products) {
  ScConfig base;
  base.halve = true;
  std::vector<std::string> settings(std::begin(kHardware), std::end(kHardware));
  settings.insert(settings.end(), std::begin(kWide), std::end(kWide));
  settings.insert(settings.end(),
                  {"halve=1", "mode=unipolar,halve=0", "gate=xnor,halve=0", "granularity=per_tensor",
                   "group_a=3,group_b=2", "arith=int6", "stoc_len=40", "arith=fp8_e4m3", "arith=mxint8"});
  for (const std::string& text : settings) {
    SCOPED_TRACE(text);
    const ScConfig config = With(base, text);
    EXPECT_TRUE(test::SameBits(Product(*cpu_, config, {5, 70}, {300, 70}, false),
                               Product(*cuda_, config, {5, 70}, {300, 70}, false)));
    if (config.arith != ScArith::kMxInt8) {  // whose blocks are chunks, which several matrices at once do not have
      EXPECT_TRUE(test::SameBits(Product(*cpu_, config, {3, 4, 33}, {3, 9, 33}, true),
                                 Product(*cuda_, config, {3, 4, 33}, {3, 9, 33}, true)));
    }
    if (config.mode == ScMode::kUnipolar || config.granularity == ScGranularity::kPerTensor) continue;
    const ScConfig chunked = With(config, "chunk_d=32");
    EXPECT_TRUE(test::SameBits(Product(*cpu_, chunked, {7, 100}, {65, 100}, false),
                               Product(*cuda_, chunked, {7, 100}, {65, 100}, false)));
  }
}

// One product more than a launch takes, with and without faults, which number rows through all products.
TEST_F(CudaPlain, ProductsOfManyMatrices) {
  constexpr int64_t kBatch = 65536;
  for (const char* text : {"halve=1", "gate=xnor,halve=0,fault_weight=0.02,fault_activation=0.02,fault_product=0.01"}) {
    const ScConfig config = With({}, text);
    EXPECT_TRUE(test::SameBits(Product(*cpu_, config, {kBatch, 1, 4}, {kBatch, 2, 4}, false),
                               Product(*cuda_, config, {kBatch, 1, 4}, {kBatch, 2, 4}, false)))
        << text;
  }
}

// A linear of a model: it has a site, rows of sequences, and channels of its own.
std::vector<float> RunLinear(Backend& backend, const LinearSpec& spec, int64_t rows, bool sliced) {
  constexpr int64_t kCols = test::kMixedCols, kOut = 70;
  const Device device = backend.devices()[0];
  const std::vector<float> numbers = RandomFloats(100, kOut * kCols);
  WeightSource source;
  source.name = "w";
  source.rows = kOut;
  source.cols = kCols;
  source.host = numbers.data();
  const int64_t count = sliced ? 30 : kOut;
  const auto weight =
      sliced ? backend.MakeLinearRows(device, source, spec, 32, count) : backend.MakeLinear(device, {&source, 1}, spec);
  const DeviceTensor x(backend, {rows, kCols}, RandomFloats(7, rows * kCols));
  const DeviceTensor out(backend, {rows, count}, RandomFloats(200, rows * count));
  std::vector<uint64_t> fault_rows;
  for (int64_t i = 0; i < rows; ++i) fault_rows.push_back(FaultRow(static_cast<uint32_t>(i % 3), 100 - i));
  LinearCall call;
  call.site = {3, "up_proj"};
  call.x = x.view();
  call.weights = {weight.get()};
  call.outs = {out.view()};
  call.add_to_out = true;
  call.fault_rows = fault_rows;
  backend.Linear(call);
  backend.CheckFinite(device);
  return out.Read();
}

TEST_F(CudaPlain, LinearsOfAModel) {
  const ScConfig base = test::MixedConfig(128);
  std::vector<std::string> settings(std::begin(kHardware), std::end(kHardware));
  settings.insert(settings.end(), std::begin(kWide), std::end(kWide));
  settings.insert(settings.end(), std::begin(kFormats), std::end(kFormats));
  for (const std::string& text : settings) {
    SCOPED_TRACE(text);
    const ScConfig config = With(base, text + (text.find("unipolar") != std::string::npos ? ",chunk_d=0" : ""));
    const auto site = [&](ScExtras* extras) { extras->site = {.layer = 3, .op = 5, .unit = 0, .first_output = 1000}; };
    LinearSpec spec{Precision::kSc, MakeScOperator(config), test::MakeExtras(config, nullptr, site)};
    for (const int64_t rows : {1, 9}) {
      EXPECT_TRUE(test::SameBits(RunLinear(*cpu_, spec, rows, false), RunLinear(*cuda_, spec, rows, false)));
      EXPECT_TRUE(test::SameBits(RunLinear(*cpu_, spec, rows, true), RunLinear(*cuda_, spec, rows, true)));
    }
    if (config.adder != ScAdder::kCounter || config.mode == ScMode::kUnipolar || config.arith != ScArith::kSc) continue;
    const auto channels = [&](ScExtras* extras) {
      site(extras);
      extras->protected_channels = {3, 4, 77, 299};
      extras->protected_op = MakeScOperator(With(config, "stoc_len=128"));
      extras->smooth = RandomFloats(5, test::kMixedCols);
      for (float& s : extras->smooth) s = 0.5f + s * s;
    };
    spec.extras = test::MakeExtras(config, test::RowRule({128, 64, 24}), channels);
    EXPECT_TRUE(test::SameBits(RunLinear(*cpu_, spec, 9, false), RunLinear(*cuda_, spec, 9, false)));
  }
}

// Sequences of several lengths, windows, and a first head that is not the model's.
TEST_F(CudaPlain, Attention) {
  const test::Passes passes = {{{0, 70}, {1, 5}}, {{0, 1}, {1, 1}}, {{1, 140}, {0, 1}}, {{0, 40}}};
  for (const char* text : kHardware) {
    for (const bool smooths : {false, true}) {
      for (const int window : {0, 50}) {
        SCOPED_TRACE(std::string(text) + (smooths ? ", smooth" : "") + ", window " + std::to_string(window));
        test::AttentionShape shape;
        shape.qk = shape.av = With(test::MixedConfig(0), text);
        if (IntBits(shape.qk.arith) > 0) shape.qk.chunk_d = shape.av.chunk_d = 128;
        shape.smooths_qk = smooths;
        shape.window = window;
        shape.num_heads = 4;
        shape.num_kv_heads = 2;
        shape.head_dim = window > 0 ? 64 : 24;
        shape.first_head = 8;
        EXPECT_EQ(
            test::Differences(test::RunAttention(*cpu_, shape, passes), test::RunAttention(*cuda_, shape, passes)), "");
      }
    }
  }
  test::AttentionShape smooth;
  smooth.qk = smooth.av = test::MixedConfig(0);
  smooth.smooths_qk = true;
  smooth.num_heads = 4;
  smooth.num_kv_heads = 2;
  smooth.head_dim = 128;
  EXPECT_EQ(test::Differences(test::RunAttention(*cpu_, smooth, passes), test::RunAttention(*cuda_, smooth, passes)),
            "");
  smooth.qk_extras = test::MakeExtras(smooth.qk, test::RowRule({128, 64, 24}));
  smooth.av_extras = test::MakeExtras(smooth.av, test::RowRule({128, 32, 8}));
  EXPECT_EQ(test::Differences(test::RunAttention(*cpu_, smooth, passes), test::RunAttention(*cuda_, smooth, passes)),
            "");
}

// Caps of scores (Gemma 2) in every mode, with a window and without one, eagerly and in graphs.
TEST_F(CudaPlain, CappedScores) {
  const test::Passes passes = {{{0, 70}, {1, 5}}, {{0, 1}, {1, 1}}, {{1, 140}, {0, 1}}, {{0, 40}}, {{0, 1}, {1, 1}}};
  for (const AttentionMode mode :
       {AttentionMode::kExact, AttentionMode::kPerToken, AttentionMode::kPerRow, AttentionMode::kPerHead}) {
    for (const auto& [head_dim, window] : {std::pair<int, int>{24, 0}, {80, 50}, {96, 0}, {256, 70}}) {
      const std::string name = "mode " + std::to_string(static_cast<int>(mode)) + ", head_dim " +
                               std::to_string(head_dim) + ", window " + std::to_string(window);
      SCOPED_TRACE(name);
      test::AttentionShape shape;
      shape.mode = mode;
      shape.qk = shape.av = test::MixedConfig(0);
      shape.num_heads = 4;
      shape.num_kv_heads = 2;
      shape.head_dim = head_dim;
      shape.window = window;
      const test::AttentionRows uncapped = test::RunAttention(*cpu_, shape, passes);
      shape.score_cap = 1.5f;
      const test::AttentionRows expected = test::RunAttention(*cpu_, shape, passes);
      EXPECT_NE(test::Differences(uncapped, expected), "") << "the cap does nothing";
      EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes)), "");
      EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes, "capped, " + name)), "");
    }
  }
}

// Scores of more positions than shared memory has room for; and the fp16 baseline, which has rows alone with a cap.
TEST_F(CudaPlain, CappedScoresOfLongContexts) {
  for (const AttentionMode mode : {AttentionMode::kExact, AttentionMode::kPerToken}) {
    test::AttentionShape shape;
    shape.mode = mode;
    shape.qk = shape.av = test::MixedConfig(0);
    shape.num_heads = 2;
    shape.head_dim = 64;
    shape.max_context = 9216;
    shape.score_cap = 3;
    const std::string key = "capped and long " + std::to_string(static_cast<int>(mode));
    const test::Passes passes = {{{0, 9000}}, {{0, 1}}};
    const test::AttentionRows expected = test::RunAttention(*cpu_, shape, passes);
    EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes, key)), "");
    if (mode != AttentionMode::kExact) continue;
    shape.precision = Precision::kFp16;
    EXPECT_LT(test::WorstRow(expected, test::RunAttention(*cuda_, shape, passes)), 1e-2);
  }
}

// Keys of one block, of whole ones, and of a last short one; values in another arithmetic than keys.
TEST_F(CudaPlain, AttentionInFormatsOfNumbers) {
  const test::Passes passes = {{{0, 70}, {1, 5}}, {{0, 1}, {1, 1}}, {{1, 140}, {0, 1}}, {{0, 40}}, {{0, 1}, {1, 1}}};
  const std::pair<const char*, const char*> cases[] = {{"arith=fp8_e4m3", "arith=fp8_e4m3"},
                                                       {"arith=mxint8", "arith=fp8_e4m3"},
                                                       {"arith=mxint8", "stoc_len=64"},
                                                       {"stoc_len=64", "arith=fp8_e4m3"},
                                                       {"arith=mxint8", "arith=int8"}};
  for (const auto& [qk, av] : cases) {
    for (const int head_dim : {24, 64, 72, 256}) {
      for (const int window : {0, 50}) {
        const std::string name =
            std::string(qk) + ", " + av + ", " + std::to_string(head_dim) + ", window " + std::to_string(window);
        SCOPED_TRACE(name);
        test::AttentionShape shape;
        shape.qk = With(test::MixedConfig(0), qk);
        shape.av = With(test::MixedConfig(0), av);
        for (ScConfig* config : {&shape.qk, &shape.av}) {
          if (config->arith != ScArith::kSc) config->chunk_d = 128;
        }
        shape.num_heads = 4;
        shape.num_kv_heads = 2;
        shape.head_dim = head_dim;
        shape.window = window;
        const test::AttentionRows expected = test::RunAttention(*cpu_, shape, passes);
        EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes)), "");
        EXPECT_EQ(test::Differences(expected, test::RunAttention(*cuda_, shape, passes, name)), "");
      }
    }
  }
}

// T(a, b) = a * b, but for small errors where neither is 0.
MultiplierTablePtr NearlyExact() {
  auto table = std::make_shared<MultiplierTable>();
  for (int a = -128; a < 128; ++a) {
    for (int b = -128; b < 128; ++b) table->entries.push_back(a * b + (a == 0 || b == 0 ? 0 : (a + b) % 3));
  }
  return MultiplierTablePtr{std::move(table)};
}

std::vector<test::AttentionShape> WindowCases(AttentionMode mode) {
  std::vector<test::AttentionShape> cases;
  const auto add = [&](const ScConfig& config, const auto& edit) {
    test::AttentionShape shape;
    shape.qk = shape.av = config;
    shape.num_heads = 4;
    shape.num_kv_heads = 2;
    shape.head_dim = 24;
    edit(&shape);
    cases.push_back(shape);
  };
  ScConfig base = test::MixedConfig(0);
  if (mode == AttentionMode::kPerHead) base.granularity = ScGranularity::kPerHead;
  const auto lengths = [](test::AttentionShape* shape, const auto& edit) {
    auto qk = test::RowRule({128, 64, 24});
    auto av = test::RowRule({128, 32, 8});
    qk->hi = 6.0f;
    av->hi = 1.0f;
    for (ScLengthRule* rule : {qk.get(), av.get()}) edit(rule);
    shape->qk_extras = test::MakeExtras(shape->qk, qk);
    shape->av_extras = test::MakeExtras(shape->av, av);
  };
  const auto call = [](ScLengthRule* rule) { rule->normalise = ScNormalise::kCall; };
  add(base, [&](auto* shape) { lengths(shape, [](ScLengthRule*) {}); });
  add(base, [&](auto* shape) { lengths(shape, call); });
  add(base, [&](auto* shape) {
    lengths(shape, [&](ScLengthRule* rule) {
      call(rule);
      rule->scope = ScLengthScope::kFractions;
      rule->fractions = {0.5, 0.25, 0.25};
    });
  });
  add(base, [](auto* shape) { shape->smooths_qk = true; });
  add(base, [&](auto* shape) {
    shape->smooths_qk = true;
    shape->window = 50;
    lengths(shape, call);
  });
  for (const char* text : {"arith=int8", "arith=int4", "arith=fp8_e4m3"}) {
    add(With(base, text), [](auto* shape) { shape->qk.chunk_d = shape->av.chunk_d = 128; });
  }
  add(With(base, "arith=fp8_e4m3"), [&](auto* shape) {
    shape->qk = With(base, "arith=mxint8");
    shape->av.chunk_d = 128;
    shape->head_dim = 72;
  });
  for (const char* text :
       {"acc_bits=12", "acc_bits=9,acc_group=8", "adder=apc,adder_group=4", "adder=or,adder_group=3"}) {
    add(With(base, text), [](auto* /*shape*/) {});
    add(With(base, text), [](auto* shape) { shape->window = 50; });
  }
  ScConfig table;
  table.gate = ScGate::kTable;
  table.table = "nearly";
  table.multiplier = NearlyExact();
  add(table, [](auto*) {});
  add(table, [](auto* shape) { shape->window = 50; });
  return cases;
}

TEST_F(CudaPlain, WholeWindows) {
  const test::Passes passes = {{{0, 70}, {1, 5}}, {{0, 1}, {1, 1}}, {{1, 140}, {0, 1}}, {{0, 40}}};
  for (const AttentionMode mode : {AttentionMode::kPerRow, AttentionMode::kPerHead}) {
    const std::vector<test::AttentionShape> cases = WindowCases(mode);
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE("mode " + std::to_string(static_cast<int>(mode)) + ", case " + std::to_string(i));
      test::AttentionShape shape = cases[i];
      shape.mode = mode;
      EXPECT_EQ(test::Differences(test::RunAttention(*cpu_, shape, passes),
                                  test::RunAttention(*cuda_, shape, passes, "graph")),
                "");
    }
  }
}

// Experts with everything that the plain product takes.
class PlainExperts {
 public:
  static constexpr int64_t kExperts = 5, kTopK = 2, kCols = 72, kOut = 300, kRows = 6;

  PlainExperts(Backend& backend, const ScConfig& config, int op, bool draws) : backend_(backend) {
    std::vector<std::unique_ptr<LinearWeight>> weights;
    for (int64_t e = 0; e < kExperts; ++e) {
      const std::vector<float> numbers = RandomFloats(static_cast<uint64_t>(50 + e), kOut * kCols);
      WeightSource source;
      source.name = "expert";
      source.rows = kOut;
      source.cols = kCols;
      source.host = numbers.data();
      LinearSpec spec{Precision::kSc, MakeScOperator(config), nullptr};
      if (draws) {
        spec.extras = test::MakeExtras(config, nullptr,
                                       [&](ScExtras* extras) { extras->site = {.layer = 2, .op = op, .unit = e}; });
      }
      weights.push_back(backend.MakeLinear(device(), {&source, 1}, spec));
    }
    experts_ = backend.MakeExperts(std::move(weights));
  }

  std::vector<float> Run(bool shared) {
    const int64_t slots = kRows * kTopK;
    const int64_t x_rows = shared ? kRows : slots;
    const DeviceTensor x(backend_, {x_rows, kCols}, RandomFloats(7, x_rows * kCols));
    const DeviceTensor out(backend_, {slots, kOut}, std::vector<float>(static_cast<size_t>(slots * kOut), 3.0f));
    std::vector<int32_t> choice;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t k = 0; k < kTopK; ++k) choice.push_back(static_cast<int32_t>((r * 3 + k) % kExperts));
    }
    Buffer ids = backend_.Allocate(device(), slots * 4);
    const TensorView chosen = MakeView(ids.data(), DType::kI32, device(), kRows, kTopK);
    backend_.CopyFromHost(chosen, choice.data());
    std::vector<uint64_t> fault_rows;
    for (int64_t i = 0; i < kRows; ++i) fault_rows.push_back(FaultRow(2, 9 + i));
    ExpertLinearCall call;
    call.site = {2, "experts"};
    call.x = x.view();
    call.chosen = chosen;
    call.weights = {experts_.get()};
    call.outs = {out.view()};
    call.fault_rows = fault_rows;
    backend_.ExpertLinear(call);
    backend_.CheckFinite(device());
    return out.Read();
  }

 private:
  Device device() const { return backend_.devices()[0]; }
  Backend& backend_;
  std::unique_ptr<ExpertWeights> experts_;
};

TEST_F(CudaPlain, Experts) {
  constexpr int kGateProj = 4, kDownProj = 6;
  ScConfig base;
  base.halve = true;
  std::vector<ScConfig> configs;
  for (const char* text : kHardware) configs.push_back(With(base, text));
  for (const char* text : kWide) configs.push_back(With(base, text));
  configs.push_back(With(base, "arith=int8"));
  for (const char* text : kFormats) configs.push_back(With(base, text));
  configs.push_back(With(base, "gate=xnor,halve=0"));
  ScConfig table;
  table.gate = ScGate::kTable;
  table.table = "odd1";
  table.multiplier = test::OddTable(1, true);
  configs.push_back(table);
  for (const ScConfig& config : configs) {
    SCOPED_TRACE(Describe(config));
    for (const int op : {kGateProj, kDownProj}) {
      const bool draws = HasFaults(config) || !HasPlainSums(config);
      PlainExperts cpu(*cpu_, config, op, draws), cuda(*cuda_, config, op, draws);
      EXPECT_TRUE(test::SameBits(cpu.Run(op == kGateProj), cuda.Run(op == kGateProj)));
    }
  }
}

}  // namespace
}  // namespace stoch
