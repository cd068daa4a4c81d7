// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/fixed_product.h"

#include <algorithm>
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
  constexpr int32_t kDigit = FixedLoops::kDigit;
  Inputs inputs;
  const int64_t stride = 2 * (padded + kLine);
  inputs.digits = MakeArray<int16_t>(num_x * stride);
  inputs.units.resize(static_cast<size_t>(num_x));
  int16_t* const low = inputs.digits.get();
  int16_t* const high = low + padded + kLine;
  inputs.rows = {low, high, stride};
  pool.ParallelFor(num_x, [&](int64_t t, int) {
    const float* row = x + t * x_stride;
    const float scale = FixedScale(simd.max_abs_bits(row, cols), kFixedInputBits);
    inputs.units[static_cast<size_t>(t)] = FixedUnit(scale);
    for (int64_t i = 0; i < cols; ++i) {
      const int32_t a = FixedInteger(row[i], scale);
      const int32_t rest = ((a + kDigit / 2) & (kDigit - 1)) - kDigit / 2;
      low[t * stride + i] = static_cast<int16_t>(rest);
      high[t * stride + i] = static_cast<int16_t>((a - rest) / kDigit);
    }
  });
  return inputs;
}

ExactRows Advance(const ExactRows& w, int64_t rows) {
  return {static_cast<const char*>(w.data) + rows * w.stride * 2, w.stride, w.dtype};
}

// What a thread works in.
struct Scratch {
  Array<int16_t> panel;
  std::vector<int64_t> sums;
  std::vector<double> units;  // FixedUnit of each row of weights
};

}  // namespace

void FixedProduct(ThreadPool& pool, const Simd& simd, const float* x, int64_t x_stride, int64_t num_x, int64_t cols,
                  std::span<const FixedTarget> targets) {
  const FixedLoops& loops = *simd.fixed;
  const int64_t padded = (cols + FixedLoops::kPad - 1) / FixedLoops::kPad * FixedLoops::kPad;
  const Inputs inputs = Convert(pool, simd, x, x_stride, num_x, cols, padded);
  const int64_t stride = padded + kLine;  // of a panel
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
      // What this thread is likely to read next, on its way while it multiplies: 16 rows of x take 150 ms instead of 160.
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
