// SPDX-License-Identifier: Apache-2.0
// The linear op: prologues, precisions, weight sources, several weights at once; against its definition, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/math/elementary.h"
#include "kernels/math/half.h"
#include "tests/kernels/definition.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/linear/weight_sources.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"

namespace stoch {
namespace {

using test::DeviceTensor;
using test::Matrix;
using test::NumbersOf;
using test::RandomSource;
using test::Stored;

DeviceTensor Upload(Backend& backend, const Matrix& m) { return {backend, {m.rows, m.cols}, m.values}; }

LinearSpec Spec(const std::vector<std::pair<std::string, std::string>>& parameters) {
  ScConfig config;
  for (const auto& [name, value] : parameters) SetScParameter(config, name, value);
  return {Precision::kSc, MakeScOperator(config)};
}
const LinearSpec kExact{Precision::kFp32, nullptr};

Matrix Define(const Matrix& x, const Matrix& weight, const LinearSpec& spec) {
  return spec.sc ? test::DefineScProduct(x, weight, *spec.sc) : test::DefineExactProduct(x, weight);
}

class LinearTest : public testing::TestWithParam<test::BackendUnderTest> {
 protected:
  void Run(Backend& backend, const LinearSpec& spec, const std::vector<WeightSource>& parts, const Matrix& weight,
           const Matrix& x) {
    const auto linear = backend.MakeLinear(backend.devices().front(), parts, spec);
    ASSERT_EQ(linear->rows(), weight.rows);
    ASSERT_EQ(linear->cols(), weight.cols);
    Matrix start = test::RandomMatrix(99, x.rows, weight.rows);
    const DeviceTensor in = Upload(backend, x);
    const DeviceTensor out = Upload(backend, start);
    LinearCall call;
    call.site = {3, "q_proj"};
    call.x = in.view();
    call.weights = {linear.get()};
    call.outs = {out.view()};
    backend.Linear(call);
    const Matrix product = Define(x, weight, spec);
    EXPECT_TRUE(test::SameBits(out.Read(), product.values));
    call.add_to_out = true;
    backend.Linear(call);
    std::vector<float> twice = product.values;
    for (float& value : twice) value = value + value;
    EXPECT_TRUE(test::SameBits(out.Read(), twice));
    backend.CheckFinite(backend.devices().front());
  }
};

TEST_P(LinearTest, EveryShapeAndSpec) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const std::vector<LinearSpec> specs = {Spec({{"chunk_d", "128"}, {"halve", "1"}}),
                                         Spec({{"chunk_d", "128"}}),
                                         Spec({}),
                                         Spec({{"chunk_d", "128"}, {"halve", "1"}, {"stoc_len", "48"}}),
                                         Spec({{"granularity", "per_tensor"}}),
                                         Spec({{"group_a", "3"}, {"group_b", "5"}, {"chunk_d", "64"}}),
                                         Spec({{"mode", "unipolar"}}),
                                         Spec({{"gate", "xnor"}, {"chunk_d", "128"}}),
                                         kExact};
  uint64_t seed = 1;
  for (size_t i = 0; i < specs.size(); ++i) {
    for (const auto& [tokens, rows, cols] :
         {std::array<int64_t, 3>{1, 64, 64}, {1, 172, 64}, {2, 63, 172}, {9, 257, 130}, {17, 5, 352}, {70, 300, 129}}) {
      SCOPED_TRACE("spec " + std::to_string(i) + ": " + std::to_string(tokens) + " x " + std::to_string(rows) + " x " +
                   std::to_string(cols));
      const Stored weight(test::RandomMatrix(seed++, rows, cols), DType::kF32);
      Run(*backend, specs[i], {weight.source}, weight.values, test::RandomMatrix(seed++, tokens, cols));
    }
  }
}

TEST_P(LinearTest, EverySourceAndStackedParts) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Matrix x = test::RandomMatrix(5, 3, 172);
  for (const LinearSpec& spec : {Spec({{"chunk_d", "128"}}), kExact}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const Stored weight(test::RandomMatrix(6, 70, 172), dtype);
      Run(*backend, spec, {weight.source}, weight.values, x);
    }
    const Stored first(test::RandomMatrix(7, 33, 172), DType::kBF16);
    const WeightSource second = RandomSource(4, 50, 172);
    WeightSource third = RandomSource(4, 2, 172);
    third.stddev = 0;
    third.constant = 0.3f;
    Matrix stacked(85, 172);
    std::fill(stacked.values.begin(), stacked.values.end(), 0.3f);
    std::copy(first.values.values.begin(), first.values.values.end(), stacked.values.begin());
    const Matrix random = NumbersOf(second);
    std::copy(random.values.begin(), random.values.end(), stacked.values.begin() + 33 * 172);
    Run(*backend, spec, {first.source, second, third}, stacked, x);
  }
}

// Numbers that are made where they are read, a byte each where they are stored.
class Decoder final : public WeightDecoder {
 public:
  explicit Decoder(const Matrix& values) : values_(values) {}
  void Decode(int64_t first, int64_t count, float* out) const override {
    std::copy_n(values_.values.begin() + first, count, out);
  }
  int64_t StoredBytes(int64_t count) const override { return count; }

 private:
  const Matrix& values_;
};

TEST_P(LinearTest, DecodedParts) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kCols = 172, kBefore = 3, kRows = 101;
  const Matrix all = test::RandomMatrix(8, kBefore + kRows, kCols);
  const Decoder decoder(all);
  WeightSource decoded;
  decoded.name = "decoded";
  decoded.rows = kRows;
  decoded.cols = kCols;
  decoded.decoder = &decoder;
  decoded.first = kBefore * kCols;
  const Stored plain(test::RandomMatrix(9, 30, kCols), DType::kF16);
  Matrix stacked(kRows + 30, kCols);
  std::copy(all.values.begin() + kBefore * kCols, all.values.end(), stacked.values.begin());
  std::copy(plain.values.values.begin(), plain.values.values.end(), stacked.values.begin() + kRows * kCols);
  for (const LinearSpec& spec : {Spec({{"chunk_d", "128"}}), kExact}) {
    for (const int64_t tokens : {1, 9}) {
      Run(*backend, spec, {decoded, plain.source}, stacked, test::RandomMatrix(10, tokens, kCols));
    }
  }
  const auto linear = backend->MakeLinear(backend->devices().front(), {&decoded, 1}, kExact);
  EXPECT_TRUE(
      test::SameBits(backend->Unpack(*linear).values, {all.values.begin() + kBefore * kCols, all.values.end()}));
  EXPECT_EQ(linear->stream_bytes(), std::max(linear->bytes(), backend->ExactBytes(decoded)));
}

// Weights of different specs in one call, each with its own output, after each prologue.
TEST_P(LinearTest, ProloguesAndSeveralWeights) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kTokens = 5, kCols = 172;
  const Matrix x = test::RandomMatrix(21, kTokens, kCols);
  const Matrix x2 = test::RandomMatrix(22, kTokens, kCols);
  const Matrix norm = test::RandomMatrix(23, 1, kCols);
  Matrix normed(kTokens, kCols), gated(kTokens, kCols);
  for (int64_t i = 0; i < kTokens; ++i) {
    float lanes[256] = {};
    for (int64_t j = 0; j < kCols; ++j) lanes[j % 256] = std::fmaf(x.at(i, j), x.at(i, j), lanes[j % 256]);
    for (int s = 128; s > 0; s /= 2) {
      for (int j = 0; j < s; ++j) lanes[j] = lanes[j] + lanes[j + s];
    }
    const float r = 1.0f / std::sqrt(lanes[0] / static_cast<float>(kCols) + 1e-5f);
    for (int64_t j = 0; j < kCols; ++j) {
      normed.at(i, j) = x.at(i, j) * r * norm.at(0, j);
      gated.at(i, j) = x.at(i, j) / (1.0f + Exp(-x.at(i, j))) * x2.at(i, j);
    }
  }
  const std::vector<LinearSpec> specs = {Spec({{"chunk_d", "128"}}), kExact, Spec({{"halve", "1"}}),
                                         Spec({{"chunk_d", "128"}})};
  std::vector<std::unique_ptr<Stored>> stored;
  std::vector<std::unique_ptr<LinearWeight>> weights;
  for (size_t i = 0; i < specs.size(); ++i) {
    stored.push_back(
        std::make_unique<Stored>(test::RandomMatrix(30 + i, 40 + 30 * static_cast<int64_t>(i), kCols), DType::kF16));
    weights.push_back(backend->MakeLinear(backend->devices().front(), {&stored[i]->source, 1}, specs[i]));
  }
  const DeviceTensor in = Upload(*backend, x);
  const DeviceTensor in2 = Upload(*backend, x2);
  const DeviceTensor norm_weight(*backend, {kCols}, norm.values);
  for (const Prologue prologue : {Prologue::kNone, Prologue::kRmsNorm, Prologue::kSiluMul}) {
    LinearCall call;
    call.site = {0, "mixed"};
    call.prologue = prologue;
    call.x = in.view();
    call.x2 = in2.view();
    call.norm_weight = norm_weight.view();
    call.norm_eps = 1e-5f;
    std::vector<DeviceTensor> outs;
    for (const auto& weight : weights) {
      call.weights.push_back(weight.get());
      outs.push_back(Upload(*backend, Matrix(kTokens, weight->rows())));
    }
    for (const DeviceTensor& out : outs) call.outs.push_back(out.view());
    backend->Linear(call);
    const Matrix& f = prologue == Prologue::kNone ? x : (prologue == Prologue::kRmsNorm ? normed : gated);
    for (size_t i = 0; i < specs.size(); ++i) {
      EXPECT_TRUE(test::SameBits(outs[i].Read(), Define(f, stored[i]->values, specs[i]).values))
          << "prologue " << static_cast<int>(prologue) << " weight " << i;
    }
  }
}

// Many rows with weights of one spec and different sizes, which CPUs cut into blocks together.
TEST_P(LinearTest, ManyRowsWithSeveralWeights) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kTokens = 70, kCols = 300;
  const LinearSpec spec = Spec({{"chunk_d", "128"}, {"halve", "1"}});
  const Matrix x = test::RandomMatrix(51, kTokens, kCols);
  const DeviceTensor in = Upload(*backend, x);
  std::vector<std::unique_ptr<Stored>> stored;
  std::vector<std::unique_ptr<LinearWeight>> weights;
  std::vector<DeviceTensor> outs;
  LinearCall call;
  call.site = {0, "qkv"};
  call.x = in.view();
  for (const int64_t rows : {300, 65, 40}) {
    stored.push_back(
        std::make_unique<Stored>(test::RandomMatrix(60 + static_cast<uint64_t>(rows), rows, kCols), DType::kF16));
    weights.push_back(backend->MakeLinear(backend->devices().front(), {&stored.back()->source, 1}, spec));
    call.weights.push_back(weights.back().get());
    outs.push_back(Upload(*backend, Matrix(kTokens, rows)));
  }
  for (const DeviceTensor& out : outs) call.outs.push_back(out.view());
  backend->Linear(call);
  for (size_t i = 0; i < outs.size(); ++i) {
    EXPECT_TRUE(test::SameBits(outs[i].Read(), Define(x, stored[i]->values, spec).values)) << "weight " << i;
  }
}

// A column slice of a wider buffer as input and as output, as a model's fused buffers are.
// Products that underflow to -0 in every lane, in a row that a vector has to pad: the total is +0 all the same.
TEST_P(LinearTest, UnderflowingProductsAddUpToPlusZero) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t tokens : {1, 4, 20, 65}) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + ", " + std::to_string(tokens) + " tokens");
      Matrix small(5, 17);
      std::fill(small.values.begin(), small.values.end(), -1e-25f);
      const Stored weight(small, dtype);
      Matrix x(tokens, 17);
      std::fill(x.values.begin(), x.values.end(), 1e-25f);
      const Matrix product = Define(x, weight.values, kExact);
      EXPECT_EQ(FloatToBits(product.values.front()), 0u);
      const auto linear = backend->MakeLinear(backend->devices().front(), {&weight.source, 1}, kExact);
      const DeviceTensor in = Upload(*backend, x);
      const DeviceTensor out = Upload(*backend, test::RandomMatrix(7, tokens, 5));
      LinearCall call;
      call.site.op = "underflow";
      call.x = in.view();
      call.weights = {linear.get()};
      call.outs = {out.view()};
      backend->Linear(call);
      EXPECT_TRUE(test::SameBits(out.Read(), product.values));
    }
  }
}

TEST_P(LinearTest, RowsMayBeStrided) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Matrix wide = test::RandomMatrix(41, 4, 200);
  const Stored weight(test::RandomMatrix(42, 30, 64), DType::kF32);
  Matrix x(4, 64);
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 64; ++j) x.at(i, j) = wide.at(i, 100 + j);
  }
  for (const LinearSpec& spec : {Spec({{"chunk_d", "32"}}), kExact}) {
    const auto linear = backend->MakeLinear(backend->devices().front(), {&weight.source, 1}, spec);
    const DeviceTensor in = Upload(*backend, wide);
    const DeviceTensor out(*backend, {4, 100}, std::vector<float>(400, 5.0f));
    LinearCall call;
    call.site.op = "strided";
    call.x = Slice(in.view(), 1, 100, 64);
    call.weights = {linear.get()};
    call.outs = {Slice(out.view(), 1, 60, 30)};
    backend->Linear(call);
    const Matrix expected = Define(x, weight.values, spec);
    const std::vector<float> actual = out.Read();
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t j = 0; j < 100; ++j) {
        const float value = j >= 60 && j < 90 ? expected.at(i, j - 60) : 5.0f;
        ASSERT_EQ(actual[static_cast<size_t>(i * 100 + j)], value) << i << ", " << j;
      }
    }
  }
}

TEST_P(LinearTest, UnpackShowsCodesAndScales) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Matrix m(70, 130);
  for (int64_t row = 0; row < 70; ++row) {
    for (int64_t col = 0; col < 130; ++col) m.at(row, col) = static_cast<float>((row * 31 + col * 17) % 255 - 127);
    m.at(row, 0) = 127;
    m.at(row, 128) = -127;
  }
  const Stored weight(m, DType::kF32);
  const auto sc = backend->MakeLinear(backend->devices().front(), {&weight.source, 1}, Spec({{"chunk_d", "128"}}));
  const Backend::PlainLinear plain = backend->Unpack(*sc);
  ASSERT_EQ(plain.codes.size(), m.values.size());
  ASSERT_EQ(plain.scales.size(), size_t{140});
  for (size_t i = 0; i < m.values.size(); ++i) {
    const int level = static_cast<int>(m.values[i]);
    ASSERT_EQ(plain.codes[i], level < 0 ? 0x80 | -level : level) << i;
  }
  for (const float scale : plain.scales) EXPECT_EQ(scale, 1.0f);
  const auto exact = backend->MakeLinear(backend->devices().front(), {&weight.source, 1}, kExact);
  EXPECT_EQ(backend->Unpack(*exact).values, m.values);
}

TEST_P(LinearTest, NonFiniteWeightsAreNamed) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const std::vector<LinearSpec> specs = {Spec({{"chunk_d", "128"}}), Spec({{"granularity", "per_tensor"}}), kExact};
  for (const LinearSpec& spec : specs) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      const Stored good(test::RandomMatrix(50, 10, 150), DType::kF32);
      Matrix m = test::RandomMatrix(51, 80, 150);
      m.at(77, 149) = bad;
      Stored broken(m, DType::kF32);
      broken.source.name = "model.layers.5.mlp.up_proj.weight";
      const WeightSource parts[] = {good.source, broken.source};
      test::ExpectInvalid([&] { backend->MakeLinear(backend->devices().front(), parts, spec); },
                          {"model.layers.5.mlp.up_proj.weight", "77", "149", "NaN or infinity"});
    }
  }
}

TEST_P(LinearTest, NonFiniteActivationsNameLayerAndOperator) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  for (const LinearSpec& spec : {Spec({{"chunk_d", "128"}}), kExact}) {
    const Stored weight(test::RandomMatrix(60, 20, 150), DType::kF32);
    const auto linear = backend->MakeLinear(device, {&weight.source, 1}, spec);
    Matrix x = test::RandomMatrix(61, 3, 150);
    x.at(2, 149) = std::numeric_limits<float>::infinity();
    const DeviceTensor in = Upload(*backend, x);
    const DeviceTensor out = Upload(*backend, Matrix(3, 20));
    LinearCall call;
    call.site = {7, "down_proj"};
    call.x = in.view();
    call.weights = {linear.get()};
    call.outs = {out.view()};
    backend->Linear(call);
    test::ExpectInvalid([&] { backend->CheckFinite(device); }, {"layer 7", "down_proj", "NaN or infinity"});
    backend->CheckFinite(device);
  }
}

TEST_P(LinearTest, WhatDoesNotFitIsRefused) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  const Stored weight(test::RandomMatrix(70, 20, 16), DType::kF32);
  const auto linear = backend->MakeLinear(device, {&weight.source, 1}, kExact);
  const DeviceTensor x(*backend, {3, 16}, std::vector<float>(48));
  const DeviceTensor out(*backend, {3, 20}, std::vector<float>(60));
  const DeviceTensor short_out(*backend, {2, 20}, std::vector<float>(40));
  LinearCall call;
  call.site = {1, "o_proj"};
  call.weights = {linear.get()};
  call.x = x.view();
  call.outs = {short_out.view()};
  test::ExpectInvalid([&] { backend->Linear(call); }, {"o_proj", "out"});
  call.outs = {out.view()};
  call.x = Slice(x.view(), 1, 0, 15);
  test::ExpectInvalid([&] { backend->Linear(call); }, {"o_proj", "x"});
  WeightSource huge = RandomSource(1, 1, int64_t{1} << 23);  // times stream length 256: 2^31
  test::ExpectInvalid([&] { backend->MakeLinear(device, {&huge, 1}, Spec({})); }, {"random", "2^31"});
}

INSTANTIATE_TEST_SUITE_P(Backends, LinearTest, testing::ValuesIn(test::BackendsUnderTest()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace stoch
