// SPDX-License-Identifier: Apache-2.0
// Experts on a GPU: each way that a call can take is the one planned, and gives the CPU's bits.
#include "kernels/plan/linear/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime/gpu_probe.h"
#include "kernels/math/random.h"
#include "kernels/plan/linear/sc.h"
#include "kernels/registry.h"
#include "tests/kernels/definition.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/gpu/both_backends.h"
#include "tests/kernels/gpu/mixed_cases.h"
#include "tests/kernels/linear/weight_sources.h"

namespace stoch {
namespace {

using test::DeviceTensor;
using test::Matrix;
using test::RandomMatrix;
using test::SameBits;

struct Shape {
  int64_t experts = 8;
  int64_t top_k = 2;
  int64_t cols = 72;
  int64_t out = 40;
  int64_t rows = 1;
};

enum class Choice : uint8_t {
  kSpread,  // over all experts but the last
  kOne,     // every row takes expert 1 first, the others are spread
};

// Slots by row, without an expert twice in a row.
std::vector<int32_t> Choose(const Shape& shape, Choice choice) {
  std::vector<int32_t> chosen;
  const int64_t others = std::max<int64_t>(shape.experts - 1, shape.top_k);
  for (int64_t r = 0; r < shape.rows; ++r) {
    const int64_t first = choice == Choice::kOne ? 1 : r * r * 7 + r * 3;
    for (int64_t k = 0; k < shape.top_k; ++k) chosen.push_back(static_cast<int32_t>((first + k) % others));
  }
  return chosen;
}

// The matrices of all experts on one backend, and a call over them.
class Experts {
 public:
  // types: of numbers in memory, by expert, and again from the first one.
  Experts(Backend& backend, const Shape& shape, const LinearSpec& spec, const std::vector<DType>& types = {DType::kF32})
      : backend_(backend), device_(backend.devices().front()), shape_(shape) {
    for (uint64_t m = 0; m < 2; ++m) {
      std::vector<std::unique_ptr<LinearWeight>> weights;
      for (int64_t e = 0; e < shape.experts; ++e) {
        const Matrix matrix = RandomMatrix(100 * m + static_cast<uint64_t>(e), shape.out, shape.cols);
        const DType type = types[static_cast<size_t>(e) % types.size()];
        stored_.push_back(std::make_unique<test::Stored>(matrix, type));
        weights.push_back(backend.MakeLinear(device_, {&stored_.back()->source, 1}, spec));
      }
      matrices_.push_back(backend.MakeExperts(std::move(weights)));
    }
  }

  // Outputs of both matrices: slots that share a row of x, behind a norm; or slots with rows of their own, behind SiLU.
  // Of rows [first, first + rows) of the shape's; with a key as a graph, which runs twice.
  std::vector<float> Run(bool shared, const std::vector<int32_t>& choice, int64_t first, int64_t rows,
                         const std::string& key = "") {
    const int64_t each = shared ? 1 : shape_.top_k;
    const int64_t slots = rows * shape_.top_k;
    const Matrix x = RandomMatrix(7, shape_.rows * each, shape_.cols);
    const Matrix x2 = RandomMatrix(8, shape_.rows * each, shape_.cols);
    const DeviceTensor dx(backend_, {x.rows, x.cols}, x.values);
    const DeviceTensor dx2(backend_, {x.rows, x.cols}, x2.values);
    const DeviceTensor norm(backend_, {shape_.cols}, RandomMatrix(9, 1, shape_.cols).values);
    const DeviceTensor out(backend_, {slots, 2 * shape_.out + 3},
                           std::vector<float>(static_cast<size_t>(slots * (2 * shape_.out + 3)), 7.0f));
    Buffer ids = backend_.Allocate(device_, slots * 4);
    const TensorView chosen = MakeView(ids.data(), DType::kI32, device_, rows, shape_.top_k);
    backend_.CopyFromHost(chosen, choice.data() + first * shape_.top_k);
    ExpertLinearCall call;
    call.site = {0, "experts"};
    call.prologue = shared ? Prologue::kRmsNorm : Prologue::kSiluMul;
    call.x = Slice(dx.view(), 0, first * each, rows * each);
    call.x2 = Slice(dx2.view(), 0, first * each, rows * each);
    call.norm_weight = norm.view();
    call.norm_eps = 1e-5f;
    call.chosen = chosen;
    call.weights = {matrices_[0].get(), matrices_[1].get()};
    call.outs = {Slice(out.view(), 1, 0, shape_.out), Slice(out.view(), 1, shape_.out, shape_.out)};
    if (key.empty()) {
      backend_.ExpertLinear(call);
    } else {
      backend_.ExpertLinear(call);  // scratch must not grow while a graph is recorded
      for (int i = 0; i < 2; ++i) backend_.RunGraph(device_, key, [&] { backend_.ExpertLinear(call); });
    }
    std::vector<float> values = out.Read();
    backend_.CheckFinite(device_);
    return values;
  }

 private:
  Backend& backend_;
  Device device_;
  Shape shape_;
  std::vector<std::unique_ptr<test::Stored>> stored_;
  std::vector<std::unique_ptr<ExpertWeights>> matrices_;
};

class CudaExperts : public test::BothBackends {
 protected:
  void SetUp() override {
    BothBackends::SetUp();
    if (cuda_ == nullptr) return;
    traits_ = cuda::ProbeGpu(0);
  }

  ExpertPlan PlanOf(const LinearSpec& spec, const Shape& shape, bool shared) const {
    ExpertShape planned;
    planned.rows = shared ? shape.rows : shape.rows * shape.top_k;
    planned.row_slots = shared ? shape.top_k : 1;
    planned.experts = shape.experts;
    planned.in_features = shape.cols;
    planned.out_features = shape.out;
    planned.matrices = 2;
    return PlanExperts(traits_, MakeLinearOperand(spec, shape.cols), planned);
  }
  ExpertPlan PlanOf(const ScConfig& config, const Shape& shape, bool shared) const {
    return PlanOf(LinearSpec{Precision::kSc, MakeScOperator(config)}, shape, shared);
  }

  // All rows of a shape, and again under the key of a graph.
  void ExpectEqualCalls(const LinearSpec& spec, const Shape& shape, const std::vector<DType>& types = {DType::kF32}) {
    Experts cpu(*cpu_, shape, spec, types), cuda(*cuda_, shape, spec, types);
    for (const Choice choice : {Choice::kSpread, Choice::kOne}) {
      const std::vector<int32_t> chosen = Choose(shape, choice);
      for (const bool shared : {true, false}) {
        SCOPED_TRACE(testing::Message() << shape.rows << " rows" << (shared ? ", shared" : ""));
        const std::vector<float> expected = cpu.Run(shared, chosen, 0, shape.rows);
        EXPECT_TRUE(SameBits(expected, cuda.Run(shared, chosen, 0, shape.rows)));
        const std::string key = "call " + std::to_string(++graphs_);
        EXPECT_TRUE(SameBits(expected, cuda.Run(shared, chosen, 0, shape.rows, key)));
      }
    }
  }

  void ExpectEqual(const ScConfig& config, const Shape& shape, Choice choice) {
    const LinearSpec spec{Precision::kSc, MakeScOperator(config)};
    Experts cpu(*cpu_, shape, spec), cuda(*cuda_, shape, spec);
    const std::vector<int32_t> chosen = Choose(shape, choice);
    for (const bool shared : {true, false}) {
      SCOPED_TRACE(testing::Message() << shape.rows << " rows, " << shape.experts << " experts, " << shape.cols << " x "
                                      << shape.out << (shared ? ", shared rows, " : ", own rows, ")
                                      << LinearRouteName(PlanOf(config, shape, shared).route));
      const std::vector<float> expected = cpu.Run(shared, chosen, 0, shape.rows);
      EXPECT_TRUE(SameBits(expected, cuda.Run(shared, chosen, 0, shape.rows)));
      // A row alone, and in a graph.
      const int64_t row = shape.rows / 2;
      const auto width = static_cast<int64_t>(expected.size()) / shape.rows;
      const std::vector<float> alone(expected.begin() + row * width, expected.begin() + (row + 1) * width);
      const std::string key = std::to_string(++graphs_);
      EXPECT_TRUE(SameBits(alone, cuda.Run(shared, chosen, row, 1, "one " + key)));
      EXPECT_TRUE(SameBits(expected, cuda.Run(shared, chosen, 0, shape.rows, "all " + key)));
    }
  }

  // wgmma, and room for the ring that feeds it: 99 KB have none.
  bool HasTiles(const ScConfig& config) const {
    return CanPrefillWgmma(traits_, MakeScTraits(*MakeScOperator(config)));
  }

  GpuTraits traits_;
  int graphs_ = 0;
};

ScConfig Halved(int stoc_len) {
  ScConfig config;
  config.halve = true;
  config.stoc_len = stoc_len;
  config.chunk_d = 128;
  return config;
}
ScConfig Whole() {  // 256 cycles
  ScConfig config;
  config.chunk_d = 128;
  return config;
}

TEST_F(CudaExperts, SlotsAloneAndInTiles) {
  for (const int stoc_len : {128, 64}) {
    const ScConfig config = Halved(stoc_len);
    for (const int64_t rows : {1, 5, 8, 9, 32, 300}) {
      for (const Choice choice : {Choice::kSpread, Choice::kOne}) {
        const Shape shape{8, 2, 200, 300, rows};
        const bool tiles = HasTiles(config) && rows >= 32;
        EXPECT_EQ(PlanOf(config, shape, true).route, tiles ? LinearRoute::kExpertGroups : LinearRoute::kExpertLookup)
            << rows;
        ExpectEqual(config, shape, choice);
      }
    }
  }
}

// One expert that all slots share, chunks of all kinds, edges of rows and dimensions.
TEST_F(CudaExperts, EveryShape) {
  ScConfig config = Halved(128);
  for (const int chunk_d : {128, 32, 5}) {
    config.chunk_d = chunk_d;
    for (const auto& [cols, out] : {std::pair<int64_t, int64_t>{72, 40}, {130, 64}, {1000, 257}, {16, 7}}) {
      ExpectEqual(config, {5, 3, cols, out, 7}, Choice::kSpread);
      ExpectEqual(config, {5, 3, cols, out, 70}, Choice::kSpread);
    }
  }
  config.chunk_d = 128;
  ExpectEqual(config, {1, 1, 256, 96, 1}, Choice::kSpread);
  ExpectEqual(config, {1, 1, 256, 96, 400}, Choice::kSpread);
}

// More than a launch takes: rows of x where slots are alone, tiles where they are not.
TEST_F(CudaExperts, SeveralLaunches) {
  ScConfig config = Halved(128);
  config.chunk_d = 4;
  const Shape many{512, 8, 72, 96, 300};
  const ExpertPlan lookup = PlanOf(config, many, true);
  EXPECT_EQ(lookup.route, LinearRoute::kExpertLookup);
  EXPECT_LT(lookup.rows_at_once, many.rows);
  ExpectEqual(config, many, Choice::kSpread);
  config.chunk_d = 128;
  const Shape wide{64, 8, 72, 40, 60};
  const ExpertPlan tiles = PlanOf(config, wide, true);
  if (HasTiles(config)) {
    EXPECT_EQ(tiles.route, LinearRoute::kExpertGroups);
    EXPECT_LT(tiles.tiles_at_once, tiles.max_tiles);
  }
  ExpectEqual(config, wide, Choice::kSpread);
}

// Operators of every kernel: counts of 256, ranks by table, and such as have none of that.
TEST_F(CudaExperts, EveryOperator) {
  std::vector<std::pair<ScConfig, LinearRoute>> cases;
  cases.emplace_back(Whole(), LinearRoute::kExpertLookup);
  cases.emplace_back(Halved(128), LinearRoute::kExpertGroups);
  cases.back().first.scramble = ScScramble::kOff;
  cases.emplace_back(Halved(128), LinearRoute::kExpertGroups);
  cases.back().first.scramble_masks = 128;
  cases.emplace_back(Halved(96), LinearRoute::kExpertLookup);
  cases.emplace_back(Halved(17), LinearRoute::kExpertLookup);
  cases.emplace_back(Whole(), LinearRoute::kExpertGroups);  // 64 cycles
  cases.back().first.sc_prec = 6;
  cases.emplace_back(Halved(96), LinearRoute::kExpertGeneric);
  cases.back().first.chunk_d = 160;
  for (const auto& [config, kernel] : cases) {
    SCOPED_TRACE(Describe(config));
    const Shape shape{6, 2, 170, 70, 40};
    const LinearRoute planned = PlanOf(config, shape, true).route;
    const bool is_there = HasTiles(config) || kernel != LinearRoute::kExpertGroups;
    EXPECT_EQ(LinearRouteName(is_there ? planned : kernel), LinearRouteName(kernel));
    ExpectEqual(config, shape, Choice::kSpread);
    ExpectEqual(config, {6, 2, 170, 70, 3}, Choice::kSpread);
  }
}

// Specifications whose rows share scales: of one operator in codes of every kind, and in parts.
std::vector<LinearSpec> SpecsThatShareScales() {
  std::vector<LinearSpec> specs;
  const auto add = [&](ScConfig config, const auto& edit) {
    edit(config);
    specs.push_back({Precision::kSc, MakeScOperator(config)});
  };
  const auto whole_call = [](ScConfig& config) {
    config.granularity = ScGranularity::kPerTensor;
    config.chunk_d = 0;
  };
  add(Halved(128), whole_call);
  add(Whole(), whole_call);
  for (const int group : {2, 5}) {
    add(Halved(64), [&](ScConfig& config) { config.group_a = group; });
  }
  add(Halved(96), whole_call);
  add(ScConfig(), [&](ScConfig& config) {
    whole_call(config);
    config.mode = ScMode::kUnipolar;
  });
  ScConfig groups = Halved(128);
  groups.group_a = 3;
  const auto extras = [&](ScExtras* e) {
    e->protected_channels = {0, 5, 130, 299};
    e->protected_op = MakeScOperator(groups);
    for (int64_t i = 0; i < test::kMixedCols; ++i) e->smooth.push_back(0.3f + 0.01f * static_cast<float>(i));
  };
  for (const bool in_parts : {false, true}) {
    const ScExtrasPtr own =
        test::MakeExtras(groups, test::RowRule({128, 64, 24}), in_parts ? extras : std::function<void(ScExtras*)>());
    specs.push_back({Precision::kSc, MakeScOperator(groups), own});
  }
  return specs;
}

// Rows of an expert that share scales are those of its slots in a call, in order of tokens.
TEST_F(CudaExperts, ScalesThatRowsShare) {
  for (const LinearSpec& spec : SpecsThatShareScales()) {
    SCOPED_TRACE(Describe(spec.sc->config));
    for (const int64_t rows : {1, 7, 90}) {
      const Shape shape{5, 2, test::kMixedCols, 70, rows};
      EXPECT_EQ(PlanOf(spec, shape, true).route, LinearRoute::kExpertSorted);
      ExpectEqualCalls(spec, shape);
    }
  }
}

// Checkpoints may hold some experts in other types than the others, whose rows are padded to other widths.
TEST_F(CudaExperts, ExactWeightsOfSeveralTypes) {
  const std::vector<DType> types = {DType::kBF16, DType::kF32, DType::kF16};
  for (const int64_t cols : {72, 129, 1000}) {
    for (const int64_t rows : {1, 40}) {
      ExpectEqualCalls(LinearSpec{}, {7, 3, cols, 41, rows}, types);
      ExpectEqualCalls(LinearSpec{}, {2, 1, cols, 41, rows}, {DType::kF32, DType::kBF16});
    }
  }
}

// The baseline reads chosen experts alone and is near to exact products.
TEST_F(CudaExperts, HalfBaselineIsClose) {
  for (const auto& [cols, out] : {std::pair<int64_t, int64_t>{72, 40}, {2048, 96}, {4104, 17}, {75, 33}}) {
    for (const int64_t rows : {1, 9, 150}) {
      const Shape shape{8, 2, cols, out, rows};
      Experts exact(*cuda_, shape, LinearSpec{}), half(*cuda_, shape, LinearSpec{Precision::kFp16, nullptr});
      const std::vector<int32_t> chosen = Choose(shape, Choice::kSpread);
      for (const bool shared : {true, false}) {
        const std::vector<float> expected = exact.Run(shared, chosen, 0, rows);
        const std::vector<float> actual = half.Run(shared, chosen, 0, rows);
        double error = 0, norm = 0;
        for (size_t i = 0; i < expected.size(); ++i) {
          error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
          norm += expected[i] * expected[i];
        }
        EXPECT_LT(error, 1e-4 * norm) << cols << " x " << out << ", " << rows << " rows, " << shared;
      }
    }
  }
}

}  // namespace
}  // namespace stoch
