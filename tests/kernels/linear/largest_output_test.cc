// SPDX-License-Identifier: Apache-2.0
// Linears of which the largest output alone is wanted (LinearCall::only_largest): that one, and all that are as large, to
// the bit; others are finite and below it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/math/elementary.h"
#include "tests/kernels/definition.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/linear/weight_sources.h"
#include "tests/support/backends_under_test.h"

namespace stoch {
namespace {

using test::DeviceTensor;
using test::Matrix;
using test::Stored;

class Decoder final : public WeightDecoder {
 public:
  explicit Decoder(const Matrix& numbers) : numbers_(numbers) {}
  void Decode(int64_t first, int64_t count, float* out) const override {
    std::copy_n(numbers_.values.begin() + first, count, out);
    decoded_ += count;
  }
  int64_t StoredBytes(int64_t count) const override { return count * 4; }
  // Rows decoded since the last call.
  int64_t TakeRows() const { return decoded_.exchange(0) / numbers_.cols; }

 private:
  const Matrix& numbers_;
  mutable std::atomic<int64_t> decoded_ = 0;
};

class LargestOutput : public testing::TestWithParam<test::BackendUnderTest> {
 protected:
  // Of every row of x alone, several times: what a call leaves behind is in the way of none.
  static void ExpectLargest(Backend& backend, const WeightSource& source, const Matrix& x, const Matrix& expected) {
    LinearSpec spec{Precision::kFp32, nullptr};
    spec.fixed_point = true;
    ExpectLargest(backend, *backend.MakeLinear(backend.devices().front(), {&source, 1}, spec), x, expected);
  }

  static void ExpectLargest(Backend& backend, const LinearWeight& weight, const Matrix& x, const Matrix& expected) {
    const int64_t rows = weight.rows();
    for (int64_t i = 0; i < 2 * x.rows; ++i) {
      const int64_t row = i % x.rows;
      const auto begin = x.values.begin() + row * x.cols;
      const DeviceTensor in(backend, {1, x.cols}, {begin, begin + x.cols});
      const DeviceTensor out(backend, {1, rows}, std::vector<float>(static_cast<size_t>(rows), NAN));
      LinearCall call;
      call.site = {-1, "lm_head"};
      call.x = in.view();
      call.weights = {&weight};
      call.outs = {out.view()};
      call.only_largest = true;
      backend.Linear(call);
      backend.CheckFinite(backend.devices().front());
      const std::vector<float> got = out.Read();
      const auto wanted = expected.values.begin() + row * rows;
      const float largest = *std::max_element(wanted, wanted + rows);
      for (int64_t j = 0; j < rows; ++j) {
        const float value = got[static_cast<size_t>(j)];
        if (wanted[j] == largest) {
          ASSERT_EQ(FloatToBits(value), FloatToBits(wanted[j])) << "row " << row << ", output " << j;
        } else {
          ASSERT_TRUE(std::isfinite(value) && value < largest)
              << "row " << row << ", output " << j << ": " << value << " is not below " << largest;
        }
      }
    }
  }

  static void ExpectLargest(Backend& backend, const Matrix& w, const Matrix& x) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const Stored weight(w, dtype);
      ExpectLargest(backend, weight.source, x, test::DefineFixedProduct(x, weight.values));
    }
    const Stored floats(w, DType::kF32);
    const Matrix expected = test::DefineExactProduct(x, floats.values);
    ExpectLargest(backend, floats.source, x, expected);
    const Decoder decoder(floats.values);
    WeightSource decoded = floats.source;
    decoded.host = nullptr;
    decoded.decoder = &decoder;
    ExpectLargest(backend, decoded, x, expected);
  }
};

TEST_P(LargestOutput, OfRandomRows) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const int64_t cols : {1, 7, 100, 300, 1000, 4096}) {
    for (const int64_t rows : {1, 5, 16, 33, 2000}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
      if (cols == 4096 && rows == 2000) continue;  // the definition takes its time
      ExpectLargest(*backend, test::RandomMatrix(3, rows, cols), test::RandomMatrix(4, 3, cols));
    }
  }
}

// Numbers that are stored in another form: of few rows more than a byte of each is read.
TEST_P(LargestOutput, DecodesFewRows) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kRows = 8000, kCols = 512;
  const Matrix w = test::RandomMatrix(7, kRows, kCols), x = test::RandomMatrix(8, 4, kCols);
  const Decoder decoder(w);
  WeightSource source;
  source.name = "decoded";
  source.rows = kRows;
  source.cols = kCols;
  source.decoder = &decoder;
  const Matrix expected = test::DefineExactProduct(x, w);
  LinearSpec spec{Precision::kFp32, nullptr};
  spec.fixed_point = true;
  const auto weight = backend->MakeLinear(backend->devices().front(), {&source, 1}, spec);
  decoder.TakeRows();
  ExpectLargest(*backend, *weight, x, expected);
  EXPECT_LT(decoder.TakeRows(), 2 * x.rows * kRows / 100);
}

// Outputs that are equal, that differ by the least there is, and rows of which no bound says anything.
TEST_P(LargestOutput, WhereOutputsAreClose) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kRows = 300, kCols = 256;
  Matrix x = test::RandomMatrix(5, 6, kCols);
  for (int64_t i = 0; i < kCols; ++i) {
    x.at(1, i) = 0.0f;
    x.at(2, i) = i == 17 ? 1.0f : 0.0f;
    x.at(3, i) = i == 17 ? 1e30f : 1e-30f;
    x.at(4, i) = -0.0f;
  }
  const Matrix one = test::RandomMatrix(6, 1, kCols);
  Matrix w(kRows, kCols);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kCols; ++i) w.at(row, i) = one.at(0, i);
  }
  ExpectLargest(*backend, w, x);
  // The last bits of one number are all the difference.
  for (int64_t row = 0; row < kRows; ++row) w.at(row, 17) = 1.0f + static_cast<float>(row * 37 % kRows) / 1024.0f;
  ExpectLargest(*backend, w, x);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kCols; ++i) w.at(row, i) = w.at(row, i) * std::ldexp(1.0f, static_cast<int>(row % 13) - 6);
    if (row % 5 == 0) w.at(row, 3) = 500.0f;
    if (row % 7 == 0) std::fill_n(w.values.begin() + row * kCols, kCols, 0.0f);
  }
  ExpectLargest(*backend, w, x);
}

// Integers as large as they get, of which a byte leaves the most, and rows as long as they may be.
TEST_P(LargestOutput, OfTheLargestIntegers) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kCols = 32768;
  Matrix w(6, kCols), x(3, kCols);
  for (int64_t i = 0; i < kCols; ++i) {
    w.at(0, i) = 2047.0f / 1024.0f;
    w.at(1, i) = -2047.0f / 1024.0f;
    w.at(2, i) = 2046.0f / 1024.0f;
    w.at(3, i) = i % 2 == 0 ? 2047.0f / 1024.0f : 2046.0f / 1024.0f;
    w.at(4, i) = i == 0 ? 2.0f : 0.0f;
    w.at(5, i) = i % 2 == 0 ? 1.0f : -1.0f;
    x.at(0, i) = 4194303.0f;
    x.at(1, i) = -4194303.0f;
    x.at(2, i) = i % 2 == 0 ? 4194303.0f : -4194303.0f;
  }
  ExpectLargest(*backend, w, x);
}

INSTANTIATE_TEST_SUITE_P(Backends, LargestOutput, testing::ValuesIn(test::OneOfEachBackend()),
                         [](const auto& param) { return param.param.Name(); });

}  // namespace
}  // namespace stoch
