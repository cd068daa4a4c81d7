// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/float_screen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/math/elementary.h"
#include "kernels/math/fixed_point.h"
#include "kernels/math/reduce.h"

namespace stoch::cpu {
namespace {

constexpr double kRoundedUp = 1.0 + 0x1p-30;  // sums of up to 2^15 doubles are off by less
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kTaskRows = 128;

int64_t Padded(int64_t cols) { return (cols + FixedLoops::kPad - 1) / FixedLoops::kPad * FixedLoops::kPad; }

float FloatAbove(double value) {
  const auto nearest = static_cast<float>(value);
  return static_cast<double>(nearest) < value ? std::nextafter(nearest, kInfinity) : nearest;
}
float FloatBelow(double value) { return -FloatAbove(-value); }

// One row of x as integers a of FixedScale, x = unit * a + d with |d| <= unit / 2, and bounds of what a screen leaves out.
struct ScreenedInput {
  std::vector<int16_t> low, high;  // digits of a, zeros up to Padded(cols)
  double unit = 0;
  double norm = 0;      // at least the Euclidean norm of x
  double spread = 0;    // at least the Euclidean norm of d
  double rounding = 0;  // error of Simd::dot_rows over |x| |w|, at most

  // |the product of Simd::dot_rows - unit * units[row] * sum of a h|, at most, by Cauchy and Schwarz.
  double Radius(const FloatScreen& screen, int64_t row) const {
    const double w = screen.norms[static_cast<size_t>(row)], rest = screen.rests[static_cast<size_t>(row)];
    return (norm * rest + spread * (w + rest) + rounding * norm * w) * kRoundedUp + 0x1p-130;
  }
};

// Buffers of a thread for one row.
struct RowScratch {
  explicit RowScratch(int64_t cols)
      : numbers(static_cast<size_t>(cols)), scaled(numbers.size()), rests(numbers.size()), codes(numbers.size()) {}
  std::vector<float> numbers, scaled, rests;
  std::vector<uint8_t> codes;
};

struct ScreenedRow {
  float unit = 0;
  double norm = 0, rest = 0;  // at least the Euclidean norms of the row and of what its bytes leave out
};

// Codes of sign and magnitude as bytes, numbers w times `inverse`, and what the bytes leave out of these. Without branches
// and aliases, so that compilers make vectors of it.
void Scale(const float* __restrict w, int64_t cols, float inverse, const uint8_t* __restrict codes,
           int8_t* __restrict bytes, float* __restrict scaled, float* __restrict rests) {
  for (int64_t i = 0; i < cols; ++i) {
    const auto negative = static_cast<int8_t>(codes[i] >> 7);
    bytes[i] = static_cast<int8_t>(((codes[i] & 0x7f) ^ -negative) + negative);
  }
  for (int64_t i = 0; i < cols; ++i) scaled[i] = w[i] * inverse;
  for (int64_t i = 0; i < cols; ++i) rests[i] = scaled[i] - static_cast<float>(bytes[i]);
}

ScreenedRow ScreenRow(const Simd& simd, const float* w, int64_t cols, RowScratch* scratch, int8_t* bytes) {
  ScreenedRow row{.unit = BitsToFloat(simd.max_abs_bits(w, cols)) / 127.0f};
  if (row.unit < 0x1p-100f) {  // no unit that is worth one: all of the row is left out
    std::fill(bytes, bytes + cols, int8_t{0});
    double squares = 0;
    for (int64_t i = 0; i < cols; ++i) squares += static_cast<double>(w[i]) * static_cast<double>(w[i]);
    row.norm = row.rest = std::sqrt(squares) * kRoundedUp;
    return row;
  }
  constexpr int kLargest = 127;
  simd.quantize(w, cols, row.unit, kLargest, scratch->codes.data());
  Scale(w, cols, 1.0f / row.unit, scratch->codes.data(), bytes, scratch->scaled.data(), scratch->rests.data());
  // Sums of floats: a part in 1000 is more than their order and the smallest squares can lose. A scaled number, at most 127,
  // is off by less than 2^-16, and so is what is left of it.
  constexpr double kSlack = 1.001;
  const double off = 0x1p-15 * std::sqrt(static_cast<double>(cols));
  row.norm = row.unit * (std::sqrt(simd.sum_squares(scratch->scaled.data(), cols)) * kSlack + off);
  row.rest = row.unit * (std::sqrt(simd.sum_squares(scratch->rests.data(), cols)) * kSlack + off);
  return row;
}

ScreenedInput Convert(const Simd& simd, const float* x, int64_t cols) {
  constexpr int32_t kDigit = FixedLoops::kDigit;
  ScreenedInput input;
  input.low.resize(static_cast<size_t>(Padded(cols)));
  input.high.resize(static_cast<size_t>(Padded(cols)));
  const float scale = FixedScale(simd.max_abs_bits(x, cols), kFixedInputBits);
  input.unit = FixedUnit(scale);
  double squares = 0;
  for (int64_t i = 0; i < cols; ++i) {
    squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    const int32_t a = FixedInteger(x[i], scale);
    const int32_t rest = ((a + kDigit / 2) & (kDigit - 1)) - kDigit / 2;
    input.low[static_cast<size_t>(i)] = static_cast<int16_t>(rest);
    input.high[static_cast<size_t>(i)] = static_cast<int16_t>((a - rest) / kDigit);
  }
  input.norm = std::sqrt(squares) * kRoundedUp;
  input.spread = input.unit / 2 * std::sqrt(static_cast<double>(cols)) * kRoundedUp;
  // A product of a column is rounded once, a sum of it once for every later column of its lane and every fold.
  const auto roundings = static_cast<double>(cols / kDotLanes + 8);
  input.rounding = roundings * 0x1p-24 / (1.0 - roundings * 0x1p-24);
  return input;
}

}  // namespace

int64_t FloatScreen::ScreenBytes(int64_t rows, int64_t cols) {
  return rows * (Padded(cols) + 3 * static_cast<int64_t>(sizeof(float)));
}

FloatScreen MakeFloatScreen(ThreadPool& pool, const Simd& simd, int64_t num_rows, int64_t cols, const FloatRow& row) {
  FloatScreen screen;
  screen.stride = Padded(cols);
  screen.bytes = MakeArray<int8_t>(num_rows * screen.stride);
  screen.units = MakeArray<float>(num_rows);
  screen.norms = MakeArray<float>(num_rows);
  screen.rests = MakeArray<float>(num_rows);
  std::vector<RowScratch> scratch(static_cast<size_t>(pool.size()), RowScratch(cols));
  pool.ParallelFor(num_rows, [&](int64_t r, int thread) {
    RowScratch& own = scratch[static_cast<size_t>(thread)];
    const float* w = row(r, own.numbers.data());
    int8_t* bytes = screen.bytes.get() + r * screen.stride;
    const ScreenedRow made = ScreenRow(simd, w, cols, &own, bytes);
    std::fill(bytes + cols, bytes + screen.stride, int8_t{0});
    screen.units[static_cast<size_t>(r)] = made.unit;
    screen.norms[static_cast<size_t>(r)] = FloatAbove(made.norm);
    screen.rests[static_cast<size_t>(r)] = FloatAbove(made.rest);
  });
  return screen;
}

void LargestFloatProduct(ThreadPool& pool, const Simd& simd, const float* x, int64_t num_rows, int64_t cols,
                         const FloatScreen& screen, const FloatRow& row, float* out) {
  const ScreenedInput input = Convert(simd, x, cols);
  const FixedRows digits{input.low.data(), input.high.data(), screen.stride};
  const int64_t tasks = (num_rows + kTaskRows - 1) / kTaskRows;
  std::vector<float> uppers(static_cast<size_t>(num_rows));
  std::vector<float> best(static_cast<size_t>(tasks), -kInfinity);
  const auto count_of = [&](int64_t task) { return std::min(kTaskRows, num_rows - task * kTaskRows); };
  pool.ParallelFor(tasks, [&](int64_t task, int) {
    const int64_t first = task * kTaskRows;
    std::array<int64_t, kTaskRows> sums;
    const ExactRows bytes{screen.bytes.get() + first * screen.stride, screen.stride, DType::kI8};
    simd.fixed->stored(digits, 1, bytes, nullptr, count_of(task), screen.stride, sums.data(), kTaskRows);
    for (int64_t i = 0; i < count_of(task); ++i) {
      const int64_t r = first + i;
      const double middle = static_cast<double>(sums[static_cast<size_t>(i)]) * input.unit *
                            static_cast<double>(screen.units[static_cast<size_t>(r)]);
      const double radius = input.Radius(screen, r) + std::abs(middle) * 0x1p-50;
      const float lower = FloatBelow(middle - radius);
      const float upper = FloatAbove(middle + radius);
      const bool is_finite = std::isfinite(lower) && std::isfinite(upper);
      out[r] = lower;
      uppers[static_cast<size_t>(r)] = is_finite ? upper : kInfinity;
      if (is_finite) best[static_cast<size_t>(task)] = std::max(best[static_cast<size_t>(task)], lower);
    }
  });
  const float largest = *std::max_element(best.begin(), best.end());
  std::vector<std::vector<float>> scratch(static_cast<size_t>(pool.size()));
  pool.ParallelFor(tasks, [&](int64_t task, int thread) {
    for (int64_t r = task * kTaskRows; r < task * kTaskRows + count_of(task); ++r) {
      if (uppers[static_cast<size_t>(r)] < largest) continue;
      std::vector<float>& values = scratch[static_cast<size_t>(thread)];
      values.resize(static_cast<size_t>(cols));
      simd.dot_rows(x, cols, 1, {row(r, values.data()), cols, DType::kF32}, 1, cols, out + r, 1, false);
    }
  });
}

}  // namespace stoch::cpu
