// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/fixed_product.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/memory.h"
#include "kernels/math/fixed_point.h"

namespace stoch::cpu {
namespace {

// A thread keeps a panel of integers in its L2 while it walks the rows of x: of whole tiles of FixedLoops::dots.
constexpr int64_t kPanelBytes = 256 * 1024;
constexpr int64_t kPanelRows = 12;
// Rows begin so many integers, a cache line, further on: rows of a power of two crowd each other out of L1.
constexpr int64_t kLine = 32;

// Rows of x as integers in two digits.
struct Inputs {
  Array<int16_t> digits;
  std::vector<double> units;  // FixedUnit of each
  FixedRows rows;
};

Inputs Convert(ThreadPool& pool, const Simd& simd, const float* x, int64_t x_stride, int64_t num_x, int64_t cols,
               int64_t padded) {
  Inputs inputs;
  const int64_t stride = 2 * (padded + kLine);
  inputs.digits = MakeArray<int16_t>(num_x * stride);
  inputs.units.resize(static_cast<size_t>(num_x));
  int16_t* const low = inputs.digits.get();
  int16_t* const high = low + padded + kLine;
  inputs.rows = {low, high, stride};
  pool.ParallelFor(num_x, [&](int64_t t, int) {
    inputs.units[static_cast<size_t>(t)] =
        SplitInput(simd, x + t * x_stride, cols, low + t * stride, high + t * stride);
  });
  return inputs;
}

ExactRows Advance(const ExactRows& w, int64_t rows) {
  return {static_cast<const char*>(w.data) + rows * w.stride * 2, w.stride, w.dtype};
}

// The Euclidean norm of x's integers, rounded up.
double EuclideanNorm(const FixedRows& x, int64_t cols) {
  double squares = 0;  // at most 2^59: off by less than a part in 2^37
  for (int64_t i = 0; i < cols; ++i) {
    const double a = x.high[i] * FixedLoops::kDigit + x.low[i];
    squares += a * a;
  }
  constexpr double kRoundedUp = 1.0 + 0x1p-30;
  return std::sqrt(squares) * kRoundedUp;
}

// Products of the rows that can be the largest, of the others a number below it (FixedTarget::screen). By Cauchy and
// Schwarz a sum is within |a| |r| of 256 times that of the bytes.
void LargestProduct(ThreadPool& pool, const FixedLoops& loops, const Inputs& inputs, int64_t cols,
                    const FixedTarget& target) {
  const FixedScreen& screen = *target.screen;
  const double norm = EuclideanNorm(inputs.rows, cols);
  const double unit = inputs.units.front();
  const auto bounds_of = [&](int64_t first, std::span<ProductBounds> bounds) {
    const auto count = static_cast<int64_t>(bounds.size());
    std::array<int64_t, kBoundedRows> sums;
    const ExactRows bytes{screen.bytes.get() + first * screen.stride, screen.stride, DType::kI8};
    loops.stored(inputs.rows, 1, bytes, nullptr, count, screen.stride, sums.data(), kBoundedRows);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = first + i;
      const auto rest = static_cast<int64_t>(static_cast<double>(screen.rests[static_cast<size_t>(row)]) * norm) + 1;
      const int64_t middle = 256 * sums[static_cast<size_t>(i)];
      const double row_unit = FixedUnit(target.scales[row]);
      bounds[static_cast<size_t>(i)] = {FixedResult(middle - rest, unit, row_unit),
                                        FixedResult(middle + rest, unit, row_unit)};
    }
  };
  const auto multiply = [&](int64_t row, int) {
    int64_t sum = 0;
    loops.stored(inputs.rows, 1, Advance(target.w, row), target.scales + row, 1, cols, &sum, 1);
    target.out[row] = FixedResult(sum, unit, FixedUnit(target.scales[row]));
  };
  LargestRows(pool, target.num_rows, bounds_of, multiply, target.out);
}

// Buffers of a thread.
struct Scratch {
  Array<int16_t> panel;
  std::vector<int64_t> sums;
  std::vector<double> units;  // FixedUnit of each row of weights
};

}  // namespace

int64_t PaddedColumns(int64_t cols) { return (cols + FixedLoops::kPad - 1) / FixedLoops::kPad * FixedLoops::kPad; }

double SplitInput(const Simd& simd, const float* row, int64_t cols, int16_t* low, int16_t* high) {
  constexpr int32_t kDigit = FixedLoops::kDigit;
  const float scale = FixedScale(simd.max_abs_bits(row, cols), kFixedInputBits);
  for (int64_t i = 0; i < cols; ++i) {
    const int32_t a = FixedInteger(row[i], scale);
    const int32_t rest = ((a + kDigit / 2) & (kDigit - 1)) - kDigit / 2;
    low[i] = static_cast<int16_t>(rest);
    high[i] = static_cast<int16_t>((a - rest) / kDigit);
  }
  return FixedUnit(scale);
}

void LargestRows(ThreadPool& pool, int64_t num_rows,
                 const std::function<void(int64_t first, std::span<ProductBounds> bounds)>& bounds_of,
                 const std::function<void(int64_t row, int thread)>& multiply, float* out) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int64_t tasks = (num_rows + kBoundedRows - 1) / kBoundedRows;
  std::vector<float> uppers(static_cast<size_t>(num_rows));
  std::vector<float> best(static_cast<size_t>(tasks), -kInfinity);
  const auto count_of = [&](int64_t task) { return std::min(kBoundedRows, num_rows - task * kBoundedRows); };
  pool.ParallelFor(tasks, [&](int64_t task, int) {
    const int64_t first = task * kBoundedRows;
    std::array<ProductBounds, kBoundedRows> bounds;
    bounds_of(first, {bounds.data(), static_cast<size_t>(count_of(task))});
    for (int64_t i = 0; i < count_of(task); ++i) {
      const auto [lower, upper] = bounds[static_cast<size_t>(i)];
      const bool is_finite = std::isfinite(lower) && std::isfinite(upper);
      out[first + i] = lower;
      uppers[static_cast<size_t>(first + i)] = is_finite ? upper : kInfinity;
      if (is_finite) best[static_cast<size_t>(task)] = std::max(best[static_cast<size_t>(task)], lower);
    }
  });
  const float largest = *std::max_element(best.begin(), best.end());
  pool.ParallelFor(tasks, [&](int64_t task, int thread) {
    for (int64_t row = task * kBoundedRows; row < task * kBoundedRows + count_of(task); ++row) {
      if (uppers[static_cast<size_t>(row)] >= largest) multiply(row, thread);
    }
  });
}

int64_t FixedScreen::ScreenBytes(int64_t rows, int64_t cols) {
  return rows * (PaddedColumns(cols) + static_cast<int64_t>(sizeof(float)));
}

FixedScreen MakeFixedScreen(ThreadPool& pool, const Simd& simd, const ExactRows& w, const float* scales,
                            int64_t num_rows, int64_t cols) {
  FixedScreen screen;
  screen.stride = PaddedColumns(cols);
  screen.bytes = MakeArray<int8_t>(num_rows * screen.stride);
  screen.rests = MakeArray<float>(num_rows);
  pool.ParallelFor(num_rows, [&](int64_t row, int) {
    std::vector<int16_t> q(static_cast<size_t>(screen.stride));
    simd.fixed->convert(Advance(w, row).data, w.dtype, cols, scales[row], q.data());
    int64_t squares = 0;
    for (int64_t i = 0; i < screen.stride; ++i) {
      // The largest integers would round to 128.
      const int32_t high = std::min((q[static_cast<size_t>(i)] + 128) >> 8, 127);
      const int32_t rest = q[static_cast<size_t>(i)] - 256 * high;
      screen.bytes[static_cast<size_t>(row * screen.stride + i)] = static_cast<int8_t>(high);
      squares += int64_t{rest} * rest;
    }
    const auto norm = static_cast<float>(std::sqrt(static_cast<double>(squares)));
    screen.rests[static_cast<size_t>(row)] = std::nextafter(norm, std::numeric_limits<float>::infinity());
  });
  return screen;
}

void FixedProduct(ThreadPool& pool, const Simd& simd, const float* x, int64_t x_stride, int64_t num_x, int64_t cols,
                  std::span<const FixedTarget> targets) {
  const FixedLoops& loops = *simd.fixed;
  const int64_t padded = PaddedColumns(cols);
  const Inputs inputs = Convert(pool, simd, x, x_stride, num_x, cols, padded);
  if (num_x == 1 && targets.size() == 1 && targets.front().screen != nullptr) {
    return LargestProduct(pool, loops, inputs, cols, targets.front());
  }
  const int64_t stride = padded + kLine;  // 16-bit integers from one row of a panel to the next
  const int64_t panel = std::max<int64_t>(1, kPanelBytes / (2 * stride) / kPanelRows) * kPanelRows;
  struct Item {
    const FixedTarget* target;
    int64_t first;
    int64_t count;
  };
  std::vector<Item> items;
  for (const FixedTarget& target : targets) {
    for (int64_t first = 0; first < target.num_rows; first += panel) {
      items.push_back({&target, first, std::min(panel, target.num_rows - first)});
    }
  }
  // Few rows of x: reading the weights takes longer than converting them for each tile again.
  const bool stored = num_x <= loops.max_stored;
  std::vector<Scratch> scratches(static_cast<size_t>(pool.size()));
  pool.ParallelFor(static_cast<int64_t>(items.size()), [&](int64_t i, int thread) {
    const Item& item = items[static_cast<size_t>(i)];
    const FixedTarget& target = *item.target;
    const ExactRows w = Advance(target.w, item.first);
    const float* scales = target.scales + item.first;
    Scratch& scratch = scratches[static_cast<size_t>(thread)];
    scratch.sums.resize(static_cast<size_t>(num_x * panel));
    int64_t* sums = scratch.sums.data();
    if (stored) {
      loops.stored(inputs.rows, num_x, w, scales, item.count, cols, sums, panel);
    } else {
      if (scratch.panel == nullptr) scratch.panel = MakeArray<int16_t>(panel * stride);
      // Prefetches the rows that this thread is likely to read next: 16 rows of x take 150 ms instead of 160.
      const int64_t after = item.first + pool.size() * panel;
      const void* next = after + item.count <= target.num_rows ? Advance(target.w, after).data : nullptr;
      for (int64_t r = 0; r < item.count; ++r) {
        loops.convert(Advance(w, r).data, w.dtype, cols, scales[r], scratch.panel.get() + r * stride);
      }
      loops.dots(inputs.rows, num_x, scratch.panel.get(), stride, item.count, padded, next, sums, panel);
    }
    scratch.units.resize(static_cast<size_t>(panel));
    double* units = scratch.units.data();
    for (int64_t r = 0; r < item.count; ++r) units[r] = FixedUnit(scales[r]);
    for (int64_t t = 0; t < num_x; ++t) {
      const double unit = inputs.units[static_cast<size_t>(t)];
      float* out = target.out + item.first + t * target.out_stride;
      for (int64_t r = 0; r < item.count; ++r) {
        const float product = FixedResult(sums[t * panel + r], unit, units[r]);
        out[r] = target.add ? out[r] + product : product;
      }
    }
  });
}

}  // namespace stoch::cpu
