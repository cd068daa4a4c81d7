// SPDX-License-Identifier: Apache-2.0
// The ops that only some model families use - biases, norms of heads, a mixture of experts - against their definitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/math/elementary.h"
#include "kernels/math/gated.h"
#include "kernels/math/reduce.h"
#include "tests/kernels/definition.h"
#include "tests/kernels/device_tensor.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"

namespace stoch {
namespace {

using test::DeviceTensor;
using test::Matrix;
using test::RandomMatrix;
using test::SameBits;

// A dense tensor of ids.
class DeviceIds {
 public:
  DeviceIds(Backend& backend, int64_t rows, int64_t cols) : backend_(backend) {
    const Device device = backend.devices().front();
    buffer_ = backend.Allocate(device, rows * cols * 4);
    view_ = MakeView(buffer_.data(), DType::kI32, device, rows, cols);
  }
  const TensorView& view() const { return view_; }
  std::vector<int32_t> Read() const {
    std::vector<int32_t> ids(static_cast<size_t>(view_.numel()));
    backend_.CopyToHost(ids.data(), view_);
    return ids;
  }
  void Write(const std::vector<int32_t>& ids) { backend_.CopyFromHost(view_, ids.data()); }

 private:
  Backend& backend_;
  Buffer buffer_;
  TensorView view_;
};

// RMSNorm of n numbers at x, lane by lane as reduce.h says.
void DefineNorm(float* x, const float* weight, float eps, int64_t n) {
  float lanes[kRowLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % kRowLanes] = std::fma(x[i], x[i], lanes[i % kRowLanes]);
  const float mean = FoldLanes<kRowLanes>(lanes) / static_cast<float>(n);
  const float r = 1.0f / std::sqrt(mean + eps);
  for (int64_t i = 0; i < n; ++i) x[i] = (x[i] * r) * weight[i];
}

class FamilyOps : public testing::TestWithParam<test::BackendUnderTest> {};

TEST_P(FamilyOps, BiasesAreAddedToColumns) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 5}, {3, 300}, {130, 64}}) {
    const Matrix x = RandomMatrix(3, rows, cols + 7);
    const Matrix bias = RandomMatrix(4, 1, cols);
    const DeviceTensor dx(*backend, {rows, cols + 7}, x.values);
    const DeviceTensor dbias(*backend, {cols}, bias.values);
    backend->AddBias({{2, "qkv_proj"}, Slice(dx.view(), 1, 4, cols), dbias.view()});
    Matrix expected = x;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < cols; ++i) expected.at(r, i + 4) = x.at(r, i + 4) + bias.at(0, i);
    }
    EXPECT_TRUE(SameBits(dx.Read(), expected.values)) << rows << 'x' << cols;
    test::ExpectInvalid(
        [&] {
          backend->AddBias({{2, "qkv_proj"}, dx.view(), dbias.view()});
        },
        {"layer 2 qkv_proj", "bias"});
  }
}

TEST_P(FamilyOps, HeadsAreNormedOnTheirOwn) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const int64_t head_dim : {2, 24, 32, 128, 300}) {
    constexpr int64_t kRows = 3;
    constexpr float kEps = 1e-6f;
    const int64_t q_cols = 5 * head_dim;
    const int64_t k_cols = 2 * head_dim;
    Matrix all = RandomMatrix(5, kRows, q_cols + k_cols + 3);  // q | k | rest, as in a model
    Matrix weights = RandomMatrix(6, 2, head_dim);
    const DeviceTensor dx(*backend, {kRows, all.cols}, all.values);
    const DeviceTensor q_weight(*backend, {head_dim},
                                std::vector<float>(weights.values.begin(), weights.values.begin() + head_dim));
    const DeviceTensor k_weight(*backend, {head_dim},
                                std::vector<float>(weights.values.begin() + head_dim, weights.values.end()));
    NormHeadsCall call;
    call.site = {1, "qkv_proj"};
    call.head_dim = head_dim;
    call.eps = kEps;
    call.q = Slice(dx.view(), 1, 0, q_cols);
    call.k = Slice(dx.view(), 1, q_cols, k_cols);
    call.q_weight = q_weight.view();
    call.k_weight = k_weight.view();
    backend->NormHeads(call);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t h = 0; h < 7; ++h) {
        DefineNorm(&all.at(r, h * head_dim), &weights.at(h < 5 ? 0 : 1, 0), kEps, head_dim);
      }
    }
    EXPECT_TRUE(SameBits(dx.Read(), all.values)) << head_dim;
    call.q = Slice(dx.view(), 1, 0, q_cols - 1);
    test::ExpectInvalid([&] { backend->NormHeads(call); }, {"layer 1", "whole number of heads"});
  }
}

// Whole rows as one head each and no k: the norms of all heads of OLMo2, and those behind the halves of its blocks.
TEST_P(FamilyOps, WholeRowsAreNormedAsOneHead) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const int64_t cols : {24, 300, 5120}) {
    Matrix all = RandomMatrix(15, 3, cols + 3);
    Matrix weight = RandomMatrix(16, 1, cols);
    const DeviceTensor dx(*backend, {3, all.cols}, all.values);
    const DeviceTensor dweight(*backend, {cols}, weight.values);
    NormHeadsCall call;
    call.site = {1, "o_proj"};
    call.head_dim = cols;
    call.eps = 1e-6f;
    call.q = Slice(dx.view(), 1, 1, cols);
    call.k = Slice(dx.view(), 1, 1, 0);
    call.q_weight = call.k_weight = dweight.view();
    backend->NormHeads(call);
    for (int64_t r = 0; r < 3; ++r) DefineNorm(&all.at(r, 1), weight.values.data(), call.eps, cols);
    EXPECT_TRUE(SameBits(dx.Read(), all.values)) << cols;
  }
}

TEST_P(FamilyOps, GeluMultipliesAndCapsBound) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kRows = 3, kCols = 131;
  Matrix all = RandomMatrix(17, kRows, 2 * kCols + 5);
  for (float& x : all.values) x = 6 * x;
  const DeviceTensor dx(*backend, {kRows, all.cols}, all.values);
  const GeluMulCall call{{1, "gate_up_proj"}, Slice(dx.view(), 1, 2, kCols), Slice(dx.view(), 1, kCols + 3, kCols)};
  backend->GeluMul(call);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < kCols; ++i) {
      all.at(r, 2 + i) = GeluTanh(all.at(r, 2 + i)) * all.at(r, kCols + 3 + i);
    }
  }
  EXPECT_TRUE(SameBits(dx.Read(), all.values));
  backend->SoftCap({{-1, "lm_head"}, Slice(dx.view(), 1, 1, kCols), 2.5f});
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 1; i <= kCols; ++i) all.at(r, i) = SoftCap(all.at(r, i), 2.5f);
  }
  EXPECT_TRUE(SameBits(dx.Read(), all.values));
  test::ExpectInvalid([&] { backend->SoftCap({{-1, "lm_head"}, dx.view(), 0.0f}); }, {"lm_head", "a cap of"});
  test::ExpectInvalid(
      [&] {
        backend->GeluMul({{1, "gate_up_proj"}, Slice(dx.view(), 1, 0, 3), Slice(dx.view(), 1, 3, 2)});
      },
      {"layer 1", "x2"});
}

// One expert a row, which adds a multiple of its output: Granite's residuals.
TEST_P(FamilyOps, OneExpertIsAScaledSum) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kRows = 5, kCols = 131;
  const Matrix x = RandomMatrix(51, kRows, kCols + 2);
  Matrix expected = RandomMatrix(52, kRows, kCols + 4);
  const DeviceTensor dx(*backend, {kRows, x.cols}, x.values);
  const DeviceTensor factors(*backend, {kRows, 1}, std::vector<float>(kRows, 0.22f));
  const DeviceTensor out(*backend, {kRows, expected.cols}, expected.values);
  backend->CombineExperts(
      {{0, "down_proj"}, Slice(dx.view(), 1, 2, kCols), factors.view(), Slice(out.view(), 1, 1, kCols)});
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < kCols; ++i) {
      const float product = 0.22f * x.at(r, i + 2);
      expected.at(r, i + 1) = expected.at(r, i + 1) + product;
    }
  }
  EXPECT_TRUE(SameBits(out.Read(), expected.values));
}

TEST_P(FamilyOps, RoutersTakeTheMostProbableExperts) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const auto& [experts, top_k] :
       {std::pair<int64_t, int64_t>{1, 1}, {8, 2}, {8, 8}, {128, 8}, {300, 3}, {64, 40}, {1000, 33}}) {
    constexpr int64_t kRows = 9;
    Matrix logits = RandomMatrix(8, kRows, experts);
    for (int64_t e = 0; e < experts; ++e) logits.at(4, e) = 1.5f;  // ties go to the lower index
    if (experts > 3) logits.at(5, 1) = logits.at(5, 3) = 9.0f;
    for (int64_t e = 0; e < experts; ++e) logits.at(6, e) = e == experts / 2 ? 0.0f : -200.0f;  // others have p = 0
    const DeviceTensor dlogits(*backend, {kRows, experts}, logits.values);
    for (const bool normalize : {false, true}) {
      DeviceIds chosen(*backend, kRows, top_k);
      const DeviceTensor weights(*backend, {kRows, top_k}, std::vector<float>(static_cast<size_t>(kRows * top_k)));
      backend->Route({{0, "router"}, dlogits.view(), normalize, chosen.view(), weights.view()});
      const std::vector<int32_t> ids = chosen.Read();
      const std::vector<float> values = weights.Read();
      for (int64_t r = 0; r < kRows; ++r) {
        std::vector<float> p(logits.values.begin() + r * experts, logits.values.begin() + (r + 1) * experts);
        test::DefineSoftmax(p.data(), experts, experts);
        std::vector<int32_t> order(static_cast<size_t>(experts));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return p[static_cast<size_t>(a)] > p[static_cast<size_t>(b)]; });
        float sum = 0;
        for (int64_t k = 0; k < top_k; ++k) {
          const float value = p[static_cast<size_t>(order[static_cast<size_t>(k)])];
          sum = k == 0 ? value : sum + value;
        }
        for (int64_t k = 0; k < top_k; ++k) {
          const auto at = static_cast<size_t>(r * top_k + k);
          const int32_t expected = order[static_cast<size_t>(k)];
          EXPECT_EQ(ids[at], expected) << experts << " row " << r << " rank " << k;
          const float value = p[static_cast<size_t>(expected)];
          EXPECT_EQ(values[at], normalize ? value / sum : value);
        }
      }
    }
  }
}

// A route with its product gives what a linear and a route give: few rows, which are one kernel on a GPU, and many.
TEST_P(FamilyOps, RoutersMayMakeTheirLogits) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  constexpr int64_t kMost = 33;
  struct Shape {
    int64_t experts, top_k, cols;
    int64_t distinct = 0;  // rows of the router; the others repeat them, and equal p go to the lower index. 0: all
  };
  for (const auto& [experts, top_k, cols, distinct] : {Shape{128, 8, 2048},
                                                       {5, 5, 72},
                                                       {33, 3, 2500},
                                                       {256, 32, 300},
                                                       {300, 3, 64},
                                                       {64, 40, 96},
                                                       {1, 1, 8},
                                                       {128, 8, 264, 1},
                                                       {128, 8, 72, 50},
                                                       {100, 16, 136, 33},
                                                       {8, 2, 40, 7}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Matrix matrix = RandomMatrix(51, experts, cols);
      for (int64_t e = distinct; distinct > 0 && e < experts; ++e)
        std::copy_n(&matrix.at(e % distinct, 0), cols, &matrix.at(e, 0));
      std::vector<uint16_t> halves;
      for (const float value : matrix.values) halves.push_back(static_cast<uint16_t>(FloatToBits(value) >> 16));
      WeightSource source;
      source.name = "router";
      source.dtype = dtype;
      source.rows = experts;
      source.cols = cols;
      source.host = dtype == DType::kF32 ? static_cast<const void*>(matrix.values.data()) : halves.data();
      const auto weight = backend->MakeLinear(device, {&source, 1}, LinearSpec{});
      const DeviceTensor x(*backend, {kMost, cols + 3}, RandomMatrix(52, kMost, cols + 3).values);
      const DeviceTensor norm(*backend, {cols}, RandomMatrix(53, 1, cols).values);
      for (const int64_t rows : {int64_t{1}, int64_t{2}, int64_t{4}, int64_t{5}, kMost}) {
        const std::vector<float> none(static_cast<size_t>(rows * experts), 7.0f);
        const DeviceTensor logits(*backend, {rows, experts}, none), apart(*backend, {rows, experts}, none);
        const DeviceTensor weights(*backend, {rows, top_k}, std::vector<float>(static_cast<size_t>(rows * top_k)));
        const DeviceTensor expected(*backend, {rows, top_k}, std::vector<float>(static_cast<size_t>(rows * top_k)));
        const DeviceIds chosen(*backend, rows, top_k), order(*backend, rows, top_k);
        LinearCall product;
        product.site = {0, "router"};
        product.prologue = Prologue::kRmsNorm;
        product.x = Slice(Slice(x.view(), 0, 0, rows), 1, 0, cols);
        product.norm_weight = norm.view();
        product.norm_eps = 1e-6f;
        product.weights = {weight.get()};
        product.outs = {apart.view()};
        backend->Linear(product);
        backend->Route({{0, "router"}, apart.view(), true, order.view(), expected.view()});
        product.outs = {logits.view()};
        for (int again = 0; again < 2; ++again) {
          backend->Route({{0, "router"}, logits.view(), true, chosen.view(), weights.view(), &product});
        }
        SCOPED_TRACE(testing::Message() << experts << " experts of " << cols << ", " << rows << " rows");
        EXPECT_TRUE(SameBits(logits.Read(), apart.Read()));
        EXPECT_EQ(chosen.Read(), order.Read());
        EXPECT_TRUE(SameBits(weights.Read(), expected.Read()));
        product.outs = {apart.view()};
        test::ExpectInvalid(
            [&] {
              backend->Route({{0, "router"}, logits.view(), true, chosen.view(), weights.view(), &product});
            },
            {"layer 0 router", "not the logits"});
      }
    }
  }
  backend->CheckFinite(device);
}

// Experts of several specs give what LinearCall gives of the same rows, whatever else is in the call.
TEST_P(FamilyOps, ExpertsAreLinearsOfTheirRows) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  constexpr int64_t kExperts = 5, kRows = 7, kTopK = 2, kCols = 72, kOut = 40;
  ScConfig sc;
  sc.chunk_d = 32;
  for (const bool exact : {true, false}) {
    const LinearSpec spec = exact ? LinearSpec{} : LinearSpec{Precision::kSc, MakeScOperator(sc)};
    std::vector<Matrix> matrices;
    std::vector<std::unique_ptr<LinearWeight>> weights;
    std::vector<std::unique_ptr<LinearWeight>> plain;
    for (int64_t e = 0; e < kExperts; ++e) matrices.push_back(RandomMatrix(20 + static_cast<uint64_t>(e), kOut, kCols));
    for (const Matrix& matrix : matrices) {
      WeightSource source;
      source.name = "expert";
      source.rows = kOut;
      source.cols = kCols;
      source.host = matrix.values.data();
      weights.push_back(backend->MakeLinear(device, {&source, 1}, spec));
      plain.push_back(backend->MakeLinear(device, {&source, 1}, spec));
    }
    const auto experts = backend->MakeExperts(std::move(weights));
    EXPECT_EQ(experts->count(), kExperts);
    std::vector<int32_t> choice;  // no row takes expert 4
    for (int64_t r = 0; r < kRows; ++r) {
      choice.push_back(static_cast<int32_t>(r % 3));
      choice.push_back(r == 3 ? 3 : static_cast<int32_t>((r + 1) % 3));
    }
    DeviceIds chosen(*backend, kRows, kTopK);
    chosen.Write(choice);
    for (const Prologue prologue : {Prologue::kNone, Prologue::kRmsNorm, Prologue::kSiluMul}) {
      const bool per_slot = prologue == Prologue::kSiluMul;
      const int64_t x_rows = per_slot ? kRows * kTopK : kRows;
      const Matrix x = RandomMatrix(31, x_rows, kCols);
      const DeviceTensor dx(*backend, {x_rows, kCols}, x.values);
      const DeviceTensor dx2(*backend, {x_rows, kCols}, RandomMatrix(32, x_rows, kCols).values);
      const DeviceTensor norm(*backend, {kCols}, RandomMatrix(33, 1, kCols).values);
      const DeviceTensor out(*backend, {kRows * kTopK, kOut},
                             std::vector<float>(static_cast<size_t>(kRows * kTopK * kOut), 7.0f));
      ExpertLinearCall call;
      call.site = {0, "gate_up_proj"};
      call.prologue = prologue;
      call.x = dx.view();
      call.x2 = dx2.view();
      call.norm_weight = norm.view();
      call.norm_eps = 1e-5f;
      call.chosen = chosen.view();
      call.weights = {experts.get()};
      call.outs = {out.view()};
      backend->ExpertLinear(call);
      const std::vector<float> actual = out.Read();
      for (int64_t s = 0; s < kRows * kTopK; ++s) {
        const int64_t row = per_slot ? s : s / kTopK;
        const DeviceTensor y(*backend, {1, kOut}, std::vector<float>(kOut));
        LinearCall linear;
        linear.site = {0, "one"};
        linear.prologue = prologue;
        linear.x = Slice(dx.view(), 0, row, 1);
        linear.x2 = Slice(dx2.view(), 0, row, 1);
        linear.norm_weight = norm.view();
        linear.norm_eps = 1e-5f;
        linear.weights = {plain[static_cast<size_t>(choice[static_cast<size_t>(s)])].get()};
        linear.outs = {y.view()};
        backend->Linear(linear);
        const std::vector<float> mine(actual.begin() + s * kOut, actual.begin() + (s + 1) * kOut);
        EXPECT_TRUE(SameBits(mine, y.Read())) << exact << " prologue " << static_cast<int>(prologue) << " slot " << s;
      }
    }
  }
  backend->CheckFinite(device);
}

TEST_P(FamilyOps, ExpertsAreCombinedInOrderOfRank) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kRows = 5, kTopK = 3, kCols = 300;
  const Matrix x = RandomMatrix(41, kRows * kTopK, kCols);
  const Matrix weights = RandomMatrix(42, kRows, kTopK);
  Matrix expected = RandomMatrix(43, kRows, kCols);
  const DeviceTensor dx(*backend, {kRows * kTopK, kCols}, x.values);
  const DeviceTensor dweights(*backend, {kRows, kTopK}, weights.values);
  const DeviceTensor out(*backend, {kRows, kCols}, expected.values);
  backend->CombineExperts({{0, "down_proj"}, dx.view(), dweights.view(), out.view()});
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < kCols; ++i) {
      float sum = weights.at(r, 0) * x.at(r * kTopK, i);
      for (int64_t k = 1; k < kTopK; ++k) sum = sum + weights.at(r, k) * x.at(r * kTopK + k, i);
      expected.at(r, i) = expected.at(r, i) + sum;
    }
  }
  EXPECT_TRUE(SameBits(out.Read(), expected.values));
}

// Experts whose slots are combined in the same op give what the two ops give.
TEST_P(FamilyOps, ExpertsMayBeCombinedAtOnce) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  constexpr int64_t kExperts = 9, kCols = 200, kOut = 75;
  struct Case {
    LinearSpec spec;
    std::vector<std::pair<int64_t, int64_t>> slots_and_rows;
  };
  const auto sc_spec = [](int chunk_d) {
    ScConfig config;
    config.chunk_d = chunk_d;
    return LinearSpec{Precision::kSc, MakeScOperator(config)};
  };
  // Last: products of more slots than a GPU's launch takes, and these are no whole rows.
  for (const Case& test : {Case{sc_spec(32), {{1, 6}, {3, 1}, {3, 6}, {8, 1}, {8, 6}, {9, 6}, {20, 6}, {33, 6}}},
                           Case{LinearSpec{}, {{3, 1}, {8, 6}}}, Case{sc_spec(4), {{20, 50}}}}) {
    std::vector<Matrix> matrices;  // a backend may read them in place
    for (int64_t e = 0; e < kExperts; ++e) matrices.push_back(RandomMatrix(60 + static_cast<uint64_t>(e), kOut, kCols));
    std::vector<std::unique_ptr<LinearWeight>> weights;
    for (const Matrix& matrix : matrices) {
      WeightSource source;
      source.name = "expert";
      source.rows = kOut;
      source.cols = kCols;
      source.host = matrix.values.data();
      weights.push_back(backend->MakeLinear(device, {&source, 1}, test.spec));
    }
    const auto experts = backend->MakeExperts(std::move(weights));
    for (const auto& [top_k, rows] : test.slots_and_rows) {
      const int64_t slots = rows * top_k;
      std::vector<int32_t> choice;
      for (int64_t s = 0; s < slots; ++s)
        choice.push_back(static_cast<int32_t>((s / top_k * 5 + s % top_k) % kExperts));
      DeviceIds chosen(*backend, rows, top_k);
      chosen.Write(choice);
      const DeviceTensor x(*backend, {slots, kCols}, RandomMatrix(61, slots, kCols).values);
      const DeviceTensor x2(*backend, {slots, kCols}, RandomMatrix(62, slots, kCols).values);
      const DeviceTensor shares(*backend, {rows, top_k}, RandomMatrix(63, rows, top_k).values);
      const DeviceTensor y(*backend, {slots, kOut}, std::vector<float>(static_cast<size_t>(slots * kOut)));
      const std::vector<float> old = RandomMatrix(64, rows, kOut + 5).values;
      const DeviceTensor expected(*backend, {rows, kOut + 5}, old), actual(*backend, {rows, kOut + 5}, old);
      ExpertLinearCall call;
      call.site = {0, "down_proj"};
      call.prologue = Prologue::kSiluMul;
      call.x = x.view();
      call.x2 = x2.view();
      call.chosen = chosen.view();
      call.weights = {experts.get()};
      call.outs = {y.view()};
      backend->ExpertLinear(call);
      CombineExpertsCall combine{{0, "down_proj"}, y.view(), shares.view(), Slice(expected.view(), 1, 2, kOut)};
      backend->CombineExperts(combine);
      combine.out = Slice(actual.view(), 1, 2, kOut);
      call.combine = &combine;
      backend->ExpertLinear(call);
      EXPECT_TRUE(SameBits(actual.Read(), expected.Read())) << top_k << " slots of each of " << rows << " rows";
      call.outs = {Slice(y.view(), 0, 0, slots)};
      call.outs.front().data = call.outs.front().ptr<float>() + 1;
      test::ExpectInvalid([&] { backend->ExpertLinear(call); }, {"layer 0 down_proj", "not the one output"});
    }
  }
  backend->CheckFinite(device);
}

INSTANTIATE_TEST_SUITE_P(Backends, FamilyOps, testing::ValuesIn(test::BackendsUnderTest()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace stoch
