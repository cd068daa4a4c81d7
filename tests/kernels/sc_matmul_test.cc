// SPDX-License-Identifier: Apache-2.0
// ScMatmul of every configuration against its definition, bit for bit, on every backend.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/definition.h"
#include "tests/kernels/device_tensor.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"

namespace stoch {
namespace {

using test::DeviceTensor;
using test::Matrix;

ScConfig Parse(const std::vector<std::pair<std::string, std::string>>& parameters) {
  ScConfig config;
  for (const auto& [name, value] : parameters) SetScParameter(config, name, value);
  return config;
}

DeviceTensor Upload(Backend& backend, const Matrix& m) { return {backend, {m.rows, m.cols}, m.values}; }

Matrix Product(Backend& backend, const Matrix& a, const Matrix& b, const ScOperator& op) {
  const DeviceTensor left = Upload(backend, a);
  const DeviceTensor right = Upload(backend, b);
  Matrix y(a.rows, b.rows);
  std::fill(y.values.begin(), y.values.end(), -7.0f);
  const DeviceTensor out = Upload(backend, y);
  backend.ScMatmul(left.view(), right.view(), op, out.view());
  y.values = out.Read();
  return y;
}

class ScMatmulTest : public testing::TestWithParam<test::BackendUnderTest> {};

TEST_P(ScMatmulTest, EveryConfigurationMeetsItsDefinition) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const std::vector<std::vector<std::pair<std::string, std::string>>> configs = {
      {},
      {{"stoc_len", "128"}},
      {{"stoc_len", "17"}},
      {{"halve", "1"}},
      {{"halve", "1"}, {"stoc_len", "96"}, {"chunk_d", "128"}},
      {{"halve", "1"}, {"stoc_len", "48"}, {"chunk_d", "72"}},
      {{"halve", "1"}, {"stoc_len", "32"}, {"chunk_d", "33"}},
      {{"chunk_d", "128"}, {"scramble_masks", "256"}},
      {{"chunk_d", "100000"}},
      {{"sc_prec", "3"}},
      {{"sc_prec", "4"}, {"halve", "1"}},
      {{"sc_prec", "7"}, {"scramble", "counter"}, {"stoc_len", "64"}},
      {{"rng_levels", "64"}},
      {{"group_a", "2"}, {"group_b", "3"}},
      {{"group_a", "100"}, {"group_b", "4"}, {"chunk_d", "64"}},
      {{"granularity", "per_tensor"}},
      {{"granularity", "per_tensor"}, {"halve", "1"}},
      {{"mode", "unipolar"}},
      {{"mode", "unipolar"}, {"stoc_len", "100"}, {"group_b", "2"}},
      {{"mode", "unipolar"}, {"granularity", "per_tensor"}, {"sc_prec", "5"}},
      {{"gate", "and"}, {"source", "lfsr"}},
      {{"gate", "xnor"}, {"source", "vdc"}},
      {{"gate", "xnor"}, {"chunk_d", "50"}, {"stoc_len", "200"}},
  };
  uint64_t seed = 1;
  for (const auto& parameters : configs) {
    const ScOperatorPtr op = MakeScOperator(Parse(parameters));
    SCOPED_TRACE(Describe(op->config));
    for (const auto& [n, m, d] :
         {std::array<int64_t, 3>{1, 1, 1}, {1, 65, 172}, {3, 7, 352}, {5, 130, 33}, {11, 9, 130}, {85, 70, 300}}) {
      const Matrix a = test::RandomMatrix(seed++, n, d);
      const Matrix b = test::RandomMatrix(seed++, m, d);
      const Matrix y = Product(*backend, a, b, *op);
      ASSERT_TRUE(test::SameBits(y.values, test::DefineScProduct(a, b, *op).values)) << n << " x " << m << " x " << d;
    }
  }
  backend->CheckFinite(backend->devices().front());
}

// Every pair of levels at every mask: a row of a holds one level in one dimension and zeros elsewhere.
TEST_P(ScMatmulTest, EveryOperandPairAtLowPrecision) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const int prec : {3, 4}) {
    for (const bool halve : {false, true}) {
      ScConfig config;
      config.sc_prec = prec;
      config.halve = halve;
      config.granularity = ScGranularity::kPerTensor;  // the largest level fixes the scale at 1
      const ScOperatorPtr op = MakeScOperator(config);
      const int q = op->q_max;
      const int64_t dims = op->masks;
      for (int64_t mask = 0; mask < dims; ++mask) {
        Matrix levels(2 * q + 1, dims);
        for (int level = -q; level <= q; ++level) levels.at(level + q, mask) = static_cast<float>(level);
        const Matrix y = Product(*backend, levels, levels, *op);
        for (int a = -q; a <= q; ++a) {
          for (int b = -q; b <= q; ++b) {
            const int count = op->count(static_cast<int>(mask), std::abs(a), std::abs(b));
            const float expected = static_cast<float>((a < 0) != (b < 0) ? -count : count) * op->gain;
            ASSERT_EQ(y.at(a + q, b + q), expected) << "prec " << prec << " mask " << mask << ": " << a << ", " << b;
          }
        }
      }
    }
  }
}

// Batches, heads' scales, and views that are steps, transposes, broadcasts and reversals of memory.
TEST_P(ScMatmulTest, AnyViewMeansItsElements) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kBatch = 3, kN = 5, kM = 70, kD = 44;
  const Matrix a = test::RandomMatrix(11, kD, kBatch * kN);  // element (b, n, d) at [d][b * kN + n]
  const Matrix b = test::RandomMatrix(12, kM, 2 * kD);       // every second column, one matrix for all batches
  const DeviceTensor left = Upload(*backend, a);
  const DeviceTensor right = Upload(*backend, b);
  const DeviceTensor out(*backend, {kBatch, kM, kN}, std::vector<float>(kBatch * kN * kM, -1.0f));
  TensorView a_view = left.view();
  a_view.rank = 3;
  a_view.shape = {kBatch, kN, kD};
  a_view.stride = {kN, 1, kBatch * kN};
  TensorView b_view = right.view();
  b_view.data = b_view.ptr<float>() + (kM - 1) * 2 * kD;
  b_view.rank = 3;
  b_view.shape = {kBatch, kM, kD};
  b_view.stride = {0, -2 * kD, 2};
  TensorView out_view = out.view();
  out_view.shape = {kBatch, kN, kM};
  out_view.stride = {kM * kN, 1, kN};

  for (const char* granularity : {"per_row", "per_head"}) {
    const ScOperatorPtr op = MakeScOperator(Parse({{"granularity", granularity}, {"halve", "1"}}));
    backend->ScMatmul(a_view, b_view, *op, out_view);
    const std::vector<float> y = out.Read();
    for (int64_t batch = 0; batch < kBatch; ++batch) {
      Matrix left_part(kN, kD), right_part(kM, kD), actual(kN, kM);
      for (int64_t d = 0; d < kD; ++d) {
        for (int64_t n = 0; n < kN; ++n) left_part.at(n, d) = a.at(d, batch * kN + n);
        for (int64_t m = 0; m < kM; ++m) right_part.at(m, d) = b.at(kM - 1 - m, 2 * d);
      }
      for (int64_t n = 0; n < kN; ++n) {
        for (int64_t m = 0; m < kM; ++m) actual.at(n, m) = y[static_cast<size_t>((batch * kM + m) * kN + n)];
      }
      EXPECT_TRUE(test::SameBits(actual.values, test::DefineScProduct(left_part, right_part, *op).values))
          << granularity << " batch " << batch;
    }
  }
}

TEST_P(ScMatmulTest, WhatDoesNotFitIsRefused) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const ScOperatorPtr op = MakeScOperator({});
  const DeviceTensor a(*backend, {2, 8}, std::vector<float>(16, 1.0f));
  const DeviceTensor b(*backend, {3, 8}, std::vector<float>(24, 1.0f));
  const DeviceTensor out(*backend, {2, 3}, std::vector<float>(6));
  const DeviceTensor wide(*backend, {2, 4}, std::vector<float>(8));
  test::ExpectInvalid([&] { backend->ScMatmul(a.view(), b.view(), *op, wide.view()); }, {"sc_matmul"});
  test::ExpectInvalid([&] { backend->ScMatmul(a.view(), out.view(), *op, out.view()); }, {"sc_matmul"});
  test::ExpectInvalid([&] { backend->ScMatmul(a.view(), b.view(), *op, Slice(a.view(), 1, 0, 3)); }, {"overlap"});
  ScConfig per_head;
  per_head.granularity = ScGranularity::kPerHead;
  test::ExpectInvalid([&] { backend->ScMatmul(a.view(), b.view(), *MakeScOperator(per_head), out.view()); },
                      {"granularity", "3-D"});
}

TEST_P(ScMatmulTest, NonFiniteOperandsAreReported) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  const ScOperatorPtr op = MakeScOperator({});
  Matrix a = test::RandomMatrix(1, 2, 20);
  const Matrix b = test::RandomMatrix(2, 3, 20);
  Product(*backend, a, b, *op);
  backend->CheckFinite(device);
  a.at(1, 19) = NAN;
  Product(*backend, a, b, *op);
  test::ExpectInvalid([&] { backend->CheckFinite(device); }, {"NaN or infinity"});
  backend->CheckFinite(device);  // said once
}

INSTANTIATE_TEST_SUITE_P(Backends, ScMatmulTest, testing::ValuesIn(test::BackendsUnderTest()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace stoch
