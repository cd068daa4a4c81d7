// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/format_product.h"

#include <vector>

#include "kernels/cpu/simd/simd.h"
#include "kernels/math/number_formats.h"

namespace stoch::cpu {
namespace {

// Decodes by operations that compilers have in vectors, none of them on subnormal floats.
inline float E4m3Number(uint8_t code) {
  constexpr float kLeastNormal = 0.0078125f;  // 2^-7: what exponent 0 would be worth if it were one
  const uint32_t magnitude = code & 0x7fu;
  const float normal = BitsToFloat((magnitude << 20) + (120u << 23));
  const float number = magnitude < 8 ? 2.0f * (normal - kLeastNormal) : normal;
  return BitsToFloat(FloatToBits(number) | static_cast<uint32_t>(code & 0x80) << 24);
}

}  // namespace

const double* DecodeE4m3(const uint8_t* block, int64_t dims) {
  thread_local std::vector<double> numbers;
  const int64_t count = dims * kBlockRows;
  if (static_cast<int64_t>(numbers.size()) < count) numbers.resize(static_cast<size_t>(count));
  double* to = numbers.data();
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<double>(E4m3Number(block[i]));
  return to;
}

void AddE4m3Block(const uint8_t* left, int64_t dims, const double* right, float scale, const float* right_scales,
                  float* y) {
  // Sums are multiples of 2^-18 below 2^35, so that no addition of doubles rounds. A few outputs at a time stay in
  // registers.
  constexpr int kOutputs = 16;
  thread_local std::vector<double> numbers;
  numbers.resize(static_cast<size_t>(dims));
  for (int64_t d = 0; d < dims; ++d) numbers[static_cast<size_t>(d)] = static_cast<double>(E4m3Number(left[d]));
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
