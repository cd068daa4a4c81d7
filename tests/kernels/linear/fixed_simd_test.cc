// SPDX-License-Identifier: Apache-2.0
// Every instruction set's products of integers (FixedLoops) against the scalar reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/simd/simd.h"
#include "kernels/math/elementary.h"
#include "kernels/math/half.h"

namespace stoch::cpu {
namespace {

class FixedSimd : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const std::string_view name : SupportedSimd()) {
      if (name == GetParam()) simd_ = &SelectSimd(name);
    }
    if (simd_ == nullptr) GTEST_SKIP() << "this machine has no " << GetParam();
  }
  const Simd& reference_ = ScalarSimd();
  const Simd* simd_ = nullptr;
  std::mt19937 random_{7};
};

// Rows of x as digits that end with zeros, some of the largest, and stored rows at an odd address.
TEST_P(FixedSimd, ProductsOfIntegers) {
  constexpr int64_t kPad = FixedLoops::kPad;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const int64_t cols : {1, 15, 16, 17, 63, 64, 65, 100, 255, 512, 513, 1100, 4160}) {
      const int64_t padded = (cols + kPad - 1) / kPad * kPad, stride = padded + 32;
      for (const auto& [num_x, num_w] : {std::pair<int64_t, int64_t>{1, 1}, {1, 7}, {2, 5}, {3, 6}, {5, 4}, {12, 13}}) {
        SCOPED_TRACE(std::to_string(num_x) + " x " + std::to_string(num_w) + " x " + std::to_string(cols));
        std::vector<int16_t> low(static_cast<size_t>(num_x * stride)), high(low.size());
        for (int64_t i = 0; i < num_x * cols; ++i) {
          const size_t at = static_cast<size_t>(i / cols * stride + i % cols);
          const bool large = i / cols % 2 == 1;
          low[at] = static_cast<int16_t>(large ? -2048 : static_cast<int>(random_() % 4096) - 2048);
          high[at] = static_cast<int16_t>(large ? 1024 : static_cast<int>(random_() % 2049) - 1024);
        }
        const FixedRows x{low.data(), high.data(), stride};
        std::normal_distribution<float> normal(0.0f, 0.3f);
        std::vector<float> numbers(static_cast<size_t>(num_w * cols));
        for (float& number : numbers) number = normal(random_);
        std::vector<char> bytes(numbers.size() * 2 + 1);
        const std::vector<float> scales(static_cast<size_t>(num_w), 16384.0f);
        for (size_t i = 0; i < numbers.size(); ++i) {
          const bool large = static_cast<int64_t>(i) / cols % 2 == 0;
          const float value = large ? 1.9990234375f : std::fmax(-1.9f, std::fmin(1.9f, numbers[i]));
          const uint16_t half =
              dtype == DType::kF16 ? FloatToF16(value) : static_cast<uint16_t>(FloatToBits(value) >> 16);
          std::memcpy(bytes.data() + 1 + i * 2, &half, 2);
        }
        std::vector<int16_t> q(static_cast<size_t>(num_w * stride), -1), other(q);
        for (int64_t r = 0; r < num_w; ++r) {
          const char* row = bytes.data() + 1 + r * cols * 2;
          reference_.fixed->convert(row, dtype, cols, 16384.0f, q.data() + r * stride);
          simd_->fixed->convert(row, dtype, cols, 16384.0f, other.data() + r * stride);
        }
        ASSERT_EQ(q, other);
        const int64_t sums_stride = num_w + 2;
        std::vector<int64_t> expected(static_cast<size_t>(num_x * sums_stride), 5), actual(expected);
        reference_.fixed->dots(x, num_x, q.data(), stride, num_w, padded, nullptr, expected.data(), sums_stride);
        for (const void* next : {static_cast<const void*>(nullptr), static_cast<const void*>(q.data())}) {
          simd_->fixed->dots(x, num_x, q.data(), stride, num_w, padded, next, actual.data(), sums_stride);
          ASSERT_EQ(expected, actual);
        }
        const ExactRows w{bytes.data() + 1, cols, dtype};
        for (const Simd* simd : {&reference_, simd_}) {
          std::fill(actual.begin(), actual.end(), 5);
          simd->fixed->stored(x, num_x, w, scales.data(), num_w, cols, actual.data(), sums_stride);
          ASSERT_EQ(expected, actual) << simd->name;
        }
      }
    }
  }
}

// Rows of bytes, of any number of them, with x of the largest digits.
TEST_P(FixedSimd, ProductsOfBytes) {
  for (const int64_t cols : {64, 128, 192, 512, 1088, 32768}) {
    for (const int64_t rows : {1, 2, 3, 7}) {
      const int64_t stride = cols + 64;
      std::vector<int16_t> low(static_cast<size_t>(cols)), high(low.size());
      for (size_t i = 0; i < low.size(); ++i) {
        low[i] = static_cast<int16_t>(i % 3 == 0 ? -2048 : static_cast<int>(random_() % 4096) - 2048);
        high[i] = static_cast<int16_t>(i % 3 == 0 ? 1024 : static_cast<int>(random_() % 2049) - 1024);
      }
      std::vector<int8_t> bytes(static_cast<size_t>(rows * stride + 1));
      for (int8_t& byte : bytes) byte = static_cast<int8_t>(random_() % 4 == 0 ? 127 : random_() % 256);
      const FixedRows x{low.data(), high.data(), cols};
      const ExactRows w{bytes.data() + 1, stride, DType::kI8};
      std::vector<int64_t> expected(static_cast<size_t>(rows)), actual(expected);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < cols; ++i) {
          const int64_t a = high[static_cast<size_t>(i)] * FixedLoops::kDigit + low[static_cast<size_t>(i)];
          expected[static_cast<size_t>(r)] += a * bytes[static_cast<size_t>(1 + r * stride + i)];
        }
      }
      for (const Simd* simd : {&reference_, simd_}) {
        simd->fixed->stored(x, 1, w, nullptr, rows, cols, actual.data(), rows);
        ASSERT_EQ(expected, actual) << simd->name << ", " << rows << " x " << cols;
      }
    }
  }
}

// Every number of either type, by the power of two of the largest and by one that makes it small.
TEST_P(FixedSimd, IntegersOfEveryNumber) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const int exponent : {-50, -1, 14, 15, 100, 127}) {
      const float scale = std::ldexp(1.0f, exponent);
      std::vector<uint16_t> halves;
      for (uint32_t half = 0; half < 65536; ++half) {
        const auto bits = static_cast<uint16_t>(half);
        const float value = dtype == DType::kF16 ? F16ToFloat(bits) : Bf16ToFloat(bits);
        if (std::fabs(value * scale) < 32768.0f) halves.push_back(bits);
      }
      const auto n = static_cast<int64_t>(halves.size());
      ASSERT_GE(n, 2);  // zeros at least
      std::vector<int16_t> expected(halves.size() + 64), actual(expected);
      reference_.fixed->convert(halves.data(), dtype, n, scale, expected.data());
      simd_->fixed->convert(halves.data(), dtype, n, scale, actual.data());
      ASSERT_EQ(expected, actual) << exponent;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, FixedSimd, testing::Values("avx2", "avx512bw", "avx512vbmi", "neon"),
                         [](const auto& spec) { return std::string(spec.param); });

}  // namespace
}  // namespace stoch::cpu
