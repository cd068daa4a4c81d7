// SPDX-License-Identifier: Apache-2.0
// The linear op with weights that multiply as integers (LinearSpec::fixed_point): against its definition, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/math/elementary.h"
#include "kernels/math/half.h"
#include "kernels/math/random.h"
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

LinearSpec Spec(bool fixed) {
  LinearSpec spec{Precision::kFp32, nullptr};
  spec.fixed_point = fixed;
  return spec;
}

// Rows [0, rows) and columns [0, cols).
Matrix Corner(const Matrix& m, int64_t rows, int64_t cols) {
  Matrix corner(rows, cols);
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(m.values.begin() + i * m.cols, cols, corner.values.begin() + i * cols);
  }
  return corner;
}

class FixedLinear : public testing::TestWithParam<test::BackendUnderTest> {
 protected:
  std::vector<float> Product(Backend& backend, const std::vector<WeightSource>& parts, const Matrix& x,
                             bool fixed = true, const Matrix* add_to = nullptr) {
    const auto linear = backend.MakeLinear(backend.devices().front(), parts, Spec(fixed));
    const DeviceTensor in = Upload(backend, x);
    const DeviceTensor out =
        Upload(backend, add_to != nullptr ? *add_to : test::RandomMatrix(7, x.rows, linear->rows()));
    LinearCall call;
    call.site = {-1, "lm_head"};
    call.x = in.view();
    call.weights = {linear.get()};
    call.outs = {out.view()};
    call.add_to_out = add_to != nullptr;
    backend.Linear(call);
    backend.CheckFinite(backend.devices().front());
    return out.Read();
  }
};

// 130 rows of x times 300 of w, of which every case is a corner: a result depends on its two rows alone.
struct Case {
  Matrix x;
  std::unique_ptr<Stored> stored;  // null: random
  Matrix expected;
};
enum Source { kBf16, kF16, kRandom };

const Case& CaseOf(Source source, int64_t cols) {
  static std::map<std::pair<int, int64_t>, Case> known;
  const auto [at, fresh] = known.try_emplace({source, cols});
  Case& result = at->second;
  if (!fresh) return result;
  result.x = test::RandomMatrix(static_cast<uint64_t>(cols), 130, cols);
  Matrix weight = test::RandomMatrix(static_cast<uint64_t>(cols) + 1, 300, cols);
  if (source == kRandom) {
    weight = NumbersOf(RandomSource(4, 300, cols));
  } else {
    result.stored = std::make_unique<Stored>(weight, source == kF16 ? DType::kF16 : DType::kBF16);
    weight = result.stored->values;
  }
  result.expected = test::DefineFixedProduct(result.x, weight);
  return result;
}

TEST_P(FixedLinear, EveryShapeAndSource) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr std::array<int64_t, 9> kTokens = {1, 2, 3, 5, 8, 9, 17, 65, 130};
  constexpr std::array<int64_t, 6> kRows = {1, 5, 16, 33, 129, 300};
  for (const int64_t cols : {1, 7, 15, 64, 100, 300, 2048, 4096}) {
    for (const Source source : {kBf16, kF16, kRandom}) {
      const Case& all = CaseOf(source, cols);
      for (size_t i = 0; i < kTokens.size(); ++i) {
        for (size_t j = 0; j < kRows.size(); ++j) {
          if (cols > 300 && (i + j) % kRows.size() != 1) continue;  // every number of either once
          const int64_t tokens = kTokens[i], rows = kRows[j];
          const WeightSource part = source == kRandom ? RandomSource(4, rows, cols) : all.stored->Rows(0, rows);
          ASSERT_TRUE(test::SameBits(Product(*backend, {part}, Corner(all.x, tokens, cols)),
                                     Corner(all.expected, tokens, rows).values))
              << "source " << source << ": " << tokens << " x " << rows << " x " << cols;
        }
      }
    }
  }
}

// Rows that no power of two suits: zeros, one large number among small ones, subnormal, the largest and the smallest.
TEST_P(FixedLinear, RowsOfUnusualNumbers) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kCols = 100;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const float largest = dtype == DType::kF16 ? 65504.0f : 1e6f;
    const float smallest = dtype == DType::kF16 ? 6e-8f : 1e-40f;  // subnormal
    Matrix w = test::RandomMatrix(31, 7, kCols);
    for (int64_t i = 0; i < kCols; ++i) {
      const float sign = i % 3 == 0 ? -1.0f : 1.0f;
      w.at(0, i) = 0.0f;
      w.at(1, i) = w.at(1, i) * (i == 40 ? largest / 100.0f : 1e-3f);
      w.at(2, i) = sign * smallest * static_cast<float>(1 + i % 5);
      w.at(3, i) = sign * largest;
      w.at(4, i) = i == 99 ? 1.0f : smallest;
      w.at(5, i) = -0.0f;
    }
    const Stored weight(w, dtype);
    Matrix x = test::RandomMatrix(32, 130, kCols);
    for (int64_t i = 0; i < kCols; ++i) {
      const float sign = i % 7 == 0 ? -1.0f : 1.0f;
      x.at(0, i) = 0.0f;
      x.at(1, i) = sign * 1e-38f;
      x.at(2, i) = sign * 1e30f;
      x.at(3, i) = sign * 1e-42f;
      x.at(4, i) = i == 3 ? 1e30f : x.at(4, i);
      x.at(5, i) = i == 64 ? -1.0f : 1e-38f;
      x.at(6, i) = -0.0f;
      x.at(7, i) = sign * 1.9999999f;  // rounds up to the power of two
    }
    const Matrix expected = test::DefineFixedProduct(x, weight.values);
    EXPECT_TRUE(test::SameBits(Product(*backend, {weight.source}, x), expected.values));
    for (const int64_t tokens : {1, 8}) {
      EXPECT_TRUE(test::SameBits(Product(*backend, {weight.source}, Corner(x, tokens, kCols)),
                                 Corner(expected, tokens, 7).values));
    }
  }
}

// Sums as large as they get, in rows as long as they may be: every product of the largest integers, of digits, too.
TEST_P(FixedLinear, TheLargestSums) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const int64_t cols : {int64_t{4096}, kMaxFixedColumns}) {
    Matrix w(5, cols), x(9, cols);
    std::fill(w.values.begin(), w.values.end(), 2047.0f / 1024.0f);  // 2^15 - 2^4
    for (int64_t i = 0; i < cols; ++i) {
      w.at(1, i) = -w.at(0, i);
      w.at(2, i) = i % 2 == 0 ? w.at(0, i) : -w.at(0, i);
      // 4096 k - 2048, 4096 k + 2047 and powers of two; what is next to one.
      x.at(0, i) = 4192256.0f;
      x.at(1, i) = -4192256.0f;
      x.at(2, i) = i == 5 ? 4194303.0f : 2047.0f;
      x.at(3, i) = i == 6 ? 4194303.0f : -2048.0f;
      x.at(4, i) = 4194303.0f;
      x.at(5, i) = i % 2 == 0 ? 4194303.0f : -4194303.0f;
      x.at(6, i) = 8388607.0f;  // up to 2^22 in half as many
      x.at(7, i) = i == 7 ? 4194303.0f : 128.0f;
      x.at(8, i) = i == 8 ? 4194303.0f : -127.0f;
    }
    const Stored weight(w, DType::kF16);
    const Matrix expected = test::DefineFixedProduct(x, weight.values);
    EXPECT_TRUE(test::SameBits(Product(*backend, {weight.source}, x), expected.values)) << cols;
    EXPECT_TRUE(test::SameBits(Product(*backend, {weight.source}, Corner(x, 1, cols)), Corner(expected, 1, 5).values))
        << cols;
  }
}

TEST_P(FixedLinear, AddsToWhatIsThere) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const int64_t tokens : {1, 9}) {
    const Matrix x = test::RandomMatrix(41, tokens, 172);
    const Matrix start = test::RandomMatrix(42, tokens, 33);
    const Stored weight(test::RandomMatrix(43, 33, 172), DType::kBF16);
    std::vector<float> expected = test::DefineFixedProduct(x, weight.values).values;
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = start.values[i] + expected[i];
    EXPECT_TRUE(test::SameBits(Product(*backend, {weight.source}, x, true, &start), expected));
  }
}

// Parts of one matrix, matrices of parts of its rows, and rows of x within wider ones.
TEST_P(FixedLinear, SplitsAndSlices) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kCols = 172;
  const Matrix wide = test::RandomMatrix(51, 9, 200);
  Matrix x(9, kCols);
  for (int64_t i = 0; i < 9; ++i) std::copy_n(wide.values.begin() + i * 200 + 20, kCols, x.values.begin() + i * kCols);
  const Stored weight(test::RandomMatrix(52, 300, kCols), DType::kBF16);
  const std::vector<float> whole = test::DefineFixedProduct(x, weight.values).values;
  EXPECT_TRUE(test::SameBits(Product(*backend, {weight.Rows(0, 129), weight.Rows(129, 171)}, x), whole));

  const DeviceTensor in = Upload(*backend, wide);
  const DeviceTensor out = Upload(*backend, Matrix(9, 310));
  const Device device = backend->devices().front();
  const WeightSource first = weight.Rows(0, 129), second = weight.Rows(129, 171);
  const auto above = backend->MakeLinear(device, {&first, 1}, Spec(true));
  const auto below = backend->MakeLinear(device, {&second, 1}, Spec(true));
  LinearCall call;
  call.site = {-1, "lm_head"};
  call.x = Slice(in.view(), 1, 20, kCols);
  call.weights = {above.get(), below.get()};
  call.outs = {Slice(out.view(), 1, 5, 129), Slice(out.view(), 1, 134, 171)};
  backend->Linear(call);
  const std::vector<float> actual = out.Read();
  for (int64_t i = 0; i < 9; ++i) {
    for (int64_t j = 0; j < 310; ++j) {
      const float expected = j < 5 || j >= 305 ? 0.0f : whole[static_cast<size_t>(i * 300 + j - 5)];
      ASSERT_EQ(FloatToBits(actual[static_cast<size_t>(i * 310 + j)]), FloatToBits(expected)) << i << ", " << j;
    }
  }
}

// F16 of a file and generated numbers are one type.
TEST_P(FixedLinear, StackedFileAndRandomParts) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Stored stored(test::RandomMatrix(61, 33, 172), DType::kF16);
  const WeightSource random = RandomSource(4, 50, 172);
  Matrix stacked(83, 172);
  const Matrix numbers = NumbersOf(random);
  std::copy(stored.values.values.begin(), stored.values.values.end(), stacked.values.begin());
  std::copy(numbers.values.begin(), numbers.values.end(), stacked.values.begin() + 33 * 172);
  for (const int64_t tokens : {1, 17}) {
    const Matrix x = test::RandomMatrix(62, tokens, 172);
    EXPECT_TRUE(
        test::SameBits(Product(*backend, {stored.source, random}, x), test::DefineFixedProduct(x, stacked).values));
  }
  const WeightSource parts[] = {stored.source, random};
  const auto linear = backend->MakeLinear(backend->devices().front(), parts, Spec(true));
  EXPECT_EQ(backend->Unpack(*linear).values, stacked.values);
}

// What IsFixedPoint does not take is the product of floats, bit for bit.
TEST_P(FixedLinear, OthersStayFloatProducts) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto expect_floats = [&](const std::vector<WeightSource>& parts, const Matrix& weight, int64_t tokens) {
    const Matrix x = test::RandomMatrix(71, tokens, weight.cols);
    EXPECT_TRUE(test::SameBits(Product(*backend, parts, x), test::DefineExactProduct(x, weight).values));
    EXPECT_FALSE(
        test::SameBits(test::DefineFixedProduct(x, weight).values, test::DefineExactProduct(x, weight).values));
  };
  const Stored floats(test::RandomMatrix(72, 33, 172), DType::kF32);
  const Stored first(test::RandomMatrix(73, 20, 172), DType::kF16);
  const Stored second(test::RandomMatrix(74, 13, 172), DType::kBF16);
  Matrix stacked(33, 172);
  std::copy(first.values.values.begin(), first.values.values.end(), stacked.values.begin());
  std::copy(second.values.values.begin(), second.values.values.end(), stacked.values.begin() + 20 * 172);
  const Stored wide(test::RandomMatrix(75, 3, kMaxFixedColumns + 1), DType::kBF16);
  for (const int64_t tokens : {1, 9}) {
    expect_floats({floats.source}, floats.values, tokens);
    expect_floats({first.source, second.source}, stacked, tokens);
    expect_floats({wide.source}, wide.values, tokens);
  }
}

TEST_P(FixedLinear, NonFiniteNumbersAreNamed) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  const Stored weight(test::RandomMatrix(81, 20, 150), DType::kBF16);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const int64_t tokens : {3, 9}) {
      Matrix x = test::RandomMatrix(82, tokens, 150);
      x.at(2, 149) = bad;
      test::ExpectInvalid([&] { Product(*backend, {weight.source}, x); }, {"lm_head", "NaN or infinity"});
      backend->CheckFinite(device);
    }
    Matrix broken = test::RandomMatrix(83, 20, 150);
    broken.at(17, 149) = bad;
    const Stored stored(broken, DType::kBF16);
    test::ExpectInvalid([&] { Product(*backend, {stored.source}, test::RandomMatrix(84, 1, 150)); },
                        {"stored", "17", "149", "NaN or infinity"});
  }
  // A result beyond the largest float.
  Matrix huge(1, 150);
  std::fill(huge.values.begin(), huge.values.end(), 1e38f);
  const Stored large(huge, DType::kBF16);
  test::ExpectInvalid([&] { Product(*backend, {large.source}, huge); }, {"lm_head", "NaN or infinity"});
}

// Against sums of doubles, relative to the sum of magnitudes: numbers far below the largest of their row, which F16 has
// more of that are rounded, are what is lost. Products of floats are within 5e-9 on average.
TEST_P(FixedLinear, NearSumsOfDoubles) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kTokens = 9, kRows = 129, kCols = 2048;
  for (const auto& [dtype, worst, mean] : {std::tuple(DType::kBF16, 2e-6, 2e-7), std::tuple(DType::kF16, 4e-6, 6e-7)}) {
    Matrix numbers(kRows, kCols), x(kTokens, kCols);
    for (size_t i = 0; i < numbers.values.size(); ++i) numbers.values[i] = RandomWeight(5, 1, i, 0.02f);
    for (size_t i = 0; i < x.values.size(); ++i) x.values[i] = RandomWeight(5, 2, i, 1.0f) * 1.7f;
    const Stored weight(numbers, dtype);
    const std::vector<float> actual = Product(*backend, {weight.source}, x);
    double largest = 0, total = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t r = 0; r < kRows; ++r) {
        double dot = 0, magnitudes = 0;
        for (int64_t i = 0; i < kCols; ++i) {
          const double product = double{x.at(t, i)} * double{weight.values.at(r, i)};
          dot += product;
          magnitudes += std::fabs(product);
        }
        const double error = std::fabs(actual[static_cast<size_t>(t * kRows + r)] - dot) / magnitudes;
        largest = std::max(largest, error);
        total += error;
      }
    }
    EXPECT_LT(largest, worst) << DTypeName(dtype);
    EXPECT_LT(total, mean * kTokens * kRows) << DTypeName(dtype);
    EXPECT_GT(total, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, FixedLinear, testing::ValuesIn(test::BackendsUnderTest()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace stoch
