// SPDX-License-Identifier: Apache-2.0
// Products with rows of 16-bit floats as integers, whose sums have no order (math/fixed_point.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "kernels/cpu/memory.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/thread_pool.h"

namespace stoch::cpu {

// Columns up to a multiple of FixedLoops::kPad.
int64_t PaddedColumns(int64_t cols);

// The integers of a row of x [cols] (FixedInteger, by the scale of the row) as two digits each (FixedRows). Returns the value
// of one unit. Requires: x finite.
double SplitInput(const Simd& simd, const float* row, int64_t cols, int16_t* low, int16_t* high);

// A product is at least `lower` and at most `upper`.
struct ProductBounds {
  float lower = 0;
  float upper = 0;
};

inline constexpr int64_t kBoundedRows = 128;  // rows whose bounds are asked for together, at most

// out[r], r < num_rows = what `multiply` leaves there, for every product that can be the largest by its bounds, and for
// those whose bounds are not finite; of others a finite number below the largest.
// bounds_of(first, bounds): the bounds of bounds.size() products from row `first` on. multiply(row, thread): sets out[row];
// `thread` as of ThreadPool::ParallelFor. Both are called by several threads.
void LargestRows(ThreadPool& pool, int64_t num_rows,
                 const std::function<void(int64_t first, std::span<ProductBounds> bounds)>& bounds_of,
                 const std::function<void(int64_t row, int thread)>& multiply, float* out);

// Rows of integers q as one byte h of each, q = 256 h + r, and how much the rest can change a sum: what says of most rows
// that their product is not the largest, at half of the bytes.
struct FixedScreen {
  Array<int8_t> bytes;  // [rows][stride]; zeros after the columns
  int64_t stride = 0;   // the columns, up to a multiple of FixedLoops::kPad
  Array<float> rests;   // [rows]: at least the Euclidean norm of r
  int64_t size_bytes(int64_t rows) const { return bytes == nullptr ? 0 : ScreenBytes(rows, stride); }
  static int64_t ScreenBytes(int64_t rows, int64_t cols);
};
// The screen of num_rows rows of F16 or BF16 with their scales.
FixedScreen MakeFixedScreen(ThreadPool& pool, const Simd& simd, const ExactRows& w, const float* scales,
                            int64_t num_rows, int64_t cols);

// out[t * out_stride + r] = or += the product of x row t and w row r.
struct FixedTarget {
  ExactRows w;                    // F16 or BF16
  const float* scales = nullptr;  // [num_rows]: FixedScale of every row of w
  int64_t num_rows = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  bool add = false;
  const FixedScreen* screen =
      nullptr;  // given: of one row of x, which is not added, the largest product is all that counts
};

// Requires: x finite, cols <= kMaxFixedColumns; num_x = 1 where a target has a screen.
// Bits: those of math/fixed_point.h. With a screen: of every product that is as large as the largest; others are finite and
//       below it.
void FixedProduct(ThreadPool& pool, const Simd& simd, const float* x, int64_t x_stride, int64_t num_x, int64_t cols,
                  std::span<const FixedTarget> targets);

}  // namespace stoch::cpu
