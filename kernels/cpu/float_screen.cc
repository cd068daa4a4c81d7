// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/float_screen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "kernels/cpu/fixed_product.h"
#include "kernels/math/elementary.h"
#include "kernels/math/reduce.h"

namespace stoch::cpu {
namespace {

constexpr double kRoundedUp = 1.0 + 0x1p-30;  // sums of up to 2^15 doubles are off by less

float FloatAbove(double value) {
  const auto nearest = static_cast<float>(value);
  return static_cast<double>(nearest) < value ? std::nextafter(nearest, std::numeric_limits<float>::infinity())
                                              : nearest;
}
float FloatBelow(double value) { return -FloatAbove(-value); }

// One row of x as integers a of FixedScale, x = unit * a + d with |d| <= unit / 2, and bounds of what a screen leaves out.
struct ScreenedInput {
  std::vector<int16_t> low, high;  // digits of a, zeros up to PaddedColumns(cols)
  double unit = 0;
  double norm = 0;   // at least the Euclidean norm of x
  double error = 0;  // bound, for a row whose unit is 1, of the error of d and of the rounding of Simd::dot_rows

  // |the product of Simd::dot_rows - unit * units[row] * sum of a h|, at most, by Cauchy and Schwarz.
  double Radius(const FloatScreen& screen, int64_t row) const {
    const double row_unit = screen.units[static_cast<size_t>(row)], rest = screen.rests[static_cast<size_t>(row)];
    return (norm * rest + error * row_unit) * kRoundedUp + 0x1p-130;
  }
};

// Codes of sign and magnitude as bytes, and what these leave out of w times `inverse`. Without branches and aliases, so that
// compilers make vectors of it.
void Split(const float* __restrict w, int64_t cols, float inverse, const uint8_t* __restrict codes,
           int8_t* __restrict bytes, float* __restrict rests) {
  for (int64_t i = 0; i < cols; ++i) {
    const auto negative = static_cast<int8_t>(codes[i] >> 7);
    bytes[i] = static_cast<int8_t>(((codes[i] & 0x7f) ^ -negative) + negative);
  }
  for (int64_t i = 0; i < cols; ++i) rests[i] = w[i] * inverse - static_cast<float>(bytes[i]);
}

ScreenedInput Convert(const Simd& simd, const float* x, int64_t cols) {
  ScreenedInput input;
  input.low.resize(static_cast<size_t>(PaddedColumns(cols)));
  input.high.resize(input.low.size());
  input.unit = SplitInput(simd, x, cols, input.low.data(), input.high.data());
  double squares = 0;
  for (int64_t i = 0; i < cols; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  input.norm = std::sqrt(squares) * kRoundedUp;
  // A product of a column is rounded once, a sum of it once for every later column of its lane and every fold.
  const double roundings = static_cast<double>(cols) / kDotLanes + 9;
  const double rounding = roundings * 0x1p-24 / (1.0 - roundings * 0x1p-24);  // over |x| |w|
  const double root = std::sqrt(static_cast<double>(cols)) * kRoundedUp;
  input.error =
      (input.unit / 2 * root + rounding * input.norm) * 128 * root;  // no number is above 128 units of its row
  return input;
}

}  // namespace

int64_t FloatScreen::ScreenBytes(int64_t rows, int64_t cols) {
  return rows * (PaddedColumns(cols) + 2 * static_cast<int64_t>(sizeof(float)));
}

FloatScreen MakeFloatScreen(ThreadPool& pool, const Simd& simd, int64_t num_rows, int64_t cols, const FloatRow& row) {
  constexpr int kLargest = 127;
  FloatScreen screen;
  screen.stride = PaddedColumns(cols);
  screen.bytes = MakeArray<int8_t>(num_rows * screen.stride);
  screen.units = MakeArray<float>(num_rows);
  screen.rests = MakeArray<float>(num_rows);
  // Numbers and rests of a thread's row, and its codes.
  std::vector<std::vector<float>> floats(static_cast<size_t>(pool.size()), std::vector<float>(2 * cols));
  std::vector<std::vector<uint8_t>> codes(floats.size(), std::vector<uint8_t>(cols));
  // A scaled number, at most 127, is off by less than 2^-16, and so is what is left of it. A part in 1000 is more than the
  // order of sums of floats can lose.
  const double off = 0x1p-15 * std::sqrt(static_cast<double>(cols));
  pool.ParallelFor(num_rows, [&](int64_t r, int thread) {
    float* const numbers = floats[static_cast<size_t>(thread)].data();
    float* const rests = numbers + cols;
    uint8_t* const own_codes = codes[static_cast<size_t>(thread)].data();
    const float* w = row(r, numbers);
    const float unit = std::max(BitsToFloat(simd.max_abs_bits(w, cols)) / kLargest, 0x1p-100f);
    simd.quantize(w, cols, unit, kLargest, own_codes);
    int8_t* const bytes = screen.bytes.get() + r * screen.stride;
    Split(w, cols, 1.0f / unit, own_codes, bytes, rests);
    std::fill(bytes + cols, bytes + screen.stride, int8_t{0});
    screen.units[static_cast<size_t>(r)] = unit;
    screen.rests[static_cast<size_t>(r)] = FloatAbove(unit * (std::sqrt(simd.sum_squares(rests, cols)) * 1.001 + off));
  });
  return screen;
}

void LargestFloatProduct(ThreadPool& pool, const Simd& simd, const float* x, int64_t num_rows, int64_t cols,
                         const FloatScreen& screen, const FloatRow& row, float* out) {
  const ScreenedInput input = Convert(simd, x, cols);
  const FixedRows digits{input.low.data(), input.high.data(), screen.stride};
  const auto bounds_of = [&](int64_t first, std::span<ProductBounds> bounds) {
    const auto count = static_cast<int64_t>(bounds.size());
    std::array<int64_t, kBoundedRows> sums;
    const ExactRows bytes{screen.bytes.get() + first * screen.stride, screen.stride, DType::kI8};
    simd.fixed->stored(digits, 1, bytes, nullptr, count, screen.stride, sums.data(), kBoundedRows);
    for (int64_t i = 0; i < count; ++i) {
      const double middle = static_cast<double>(sums[static_cast<size_t>(i)]) * input.unit *
                            static_cast<double>(screen.units[static_cast<size_t>(first + i)]);
      const double radius = input.Radius(screen, first + i) + std::abs(middle) * 0x1p-50;
      bounds[static_cast<size_t>(i)] = {FloatBelow(middle - radius), FloatAbove(middle + radius)};
    }
  };
  std::vector<std::vector<float>> scratch(static_cast<size_t>(pool.size()));
  const auto multiply = [&](int64_t r, int thread) {
    std::vector<float>& values = scratch[static_cast<size_t>(thread)];
    values.resize(static_cast<size_t>(cols));
    simd.dot_rows(x, cols, 1, {row(r, values.data()), cols, DType::kF32}, 1, cols, out + r, 1, false);
  };
  LargestRows(pool, num_rows, bounds_of, multiply, out);
}

}  // namespace stoch::cpu
