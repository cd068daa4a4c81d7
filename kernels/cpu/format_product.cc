// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/format_product.h"

#include <array>
#include <vector>

#include "kernels/cpu/simd/simd.h"
#include "kernels/math/number_formats.h"

namespace stoch::cpu {
namespace {

// The numbers of all codes: 2 KiB, of which a look-up is less than the arithmetic of a code without wide vectors.
constexpr std::array<double, 256> kE4m3Numbers = [] {
  std::array<double, 256> numbers{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 0xf, mantissa = code & 7;
    const double magnitude = exponent == 0 ? mantissa : (8 + mantissa) * static_cast<double>(1 << (exponent - 1));
    numbers[static_cast<size_t>(code)] = ((code & 0x80) != 0 ? -magnitude : magnitude) / (1 << kE4m3UnitBits);
  }
  return numbers;
}();

}  // namespace

const double* DecodeE4m3(const uint8_t* block, int64_t dims) {
  thread_local std::vector<double> numbers;
  const int64_t count = dims * kBlockRows;
  if (static_cast<int64_t>(numbers.size()) < count) numbers.resize(static_cast<size_t>(count));
  double* to = numbers.data();
  for (int64_t i = 0; i < count; ++i) to[i] = kE4m3Numbers[block[i]];
  return to;
}

void AddE4m3Block(const uint8_t* left, int64_t dims, const double* right, float scale, const float* right_scales,
                  float* y) {
  // Sums are multiples of 2^-18 below 2^35, so that no addition of doubles rounds. A few outputs at a time stay in
  // registers.
  constexpr int kOutputs = 16;
  thread_local std::vector<double> numbers;
  numbers.resize(static_cast<size_t>(dims));
  for (int64_t d = 0; d < dims; ++d) numbers[static_cast<size_t>(d)] = kE4m3Numbers[left[d]];
  const double* a = numbers.data();
  alignas(64) double sums[kBlockRows];
  for (int first = 0; first < kBlockRows; first += kOutputs) {
    double part[kOutputs] = {};
    for (int64_t d = 0; d < dims; ++d) {
      const double* b = right + d * kBlockRows + first;
      for (int r = 0; r < kOutputs; ++r) part[r] += a[d] * b[r];
    }
    for (int r = 0; r < kOutputs; ++r) sums[first + r] = part[r];
  }
  for (int r = 0; r < kBlockRows; ++r) y[r] = y[r] + static_cast<float>(sums[r]) * (scale * right_scales[r]);
}

void AddMxBlock(const int32_t* acc, float scale, const float* right_scales, float* y) {
  for (int r = 0; r < kBlockRows; ++r) y[r] = y[r] + MxProduct(acc[r], scale, right_scales[r]);
}

}  // namespace stoch::cpu
