// SPDX-License-Identifier: Apache-2.0
// The largest products of one row of x with rows of floats, found by a byte of each number: an exact LM head that is decoded
// from blocks, of which a greedy step wants the largest output alone.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/cpu/memory.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/thread_pool.h"

namespace stoch::cpu {

// Rows of floats w as bytes h times a unit of their own, w = unit * h + r, and how much r can change a product.
struct FloatScreen {
  Array<int8_t> bytes;  // [rows][stride]; zeros after the columns; null: no screen
  int64_t stride = 0;   // the columns, up to a multiple of FixedLoops::kPad
  Array<float> units;   // [rows]: the largest magnitude of the row / 127, at least 2^-100
  Array<float> rests;   // [rows]: at least the Euclidean norm of r
  int64_t size_bytes(int64_t rows) const { return bytes == nullptr ? 0 : ScreenBytes(rows, stride); }
  static int64_t ScreenBytes(int64_t rows, int64_t cols);
};

// Row `row` of the weight as floats [cols]: a pointer into memory, or `scratch`, [cols], filled. Threads: safe.
using FloatRow = std::function<const float*(int64_t row, float* scratch)>;

// Requires: finite rows, cols <= kMaxFixedColumns.
FloatScreen MakeFloatScreen(ThreadPool& pool, const Simd& simd, int64_t num_rows, int64_t cols, const FloatRow& row);

// out[r], r < num_rows = the product of x [cols] and w row r, where it can be the largest; of others a finite number below
// the largest.
// Requires: x finite, a screen of these rows.
// Bits: of every product that is as large as the largest, those of Simd::dot_rows.
void LargestFloatProduct(ThreadPool& pool, const Simd& simd, const float* x, int64_t num_rows, int64_t cols,
                         const FloatScreen& screen, const FloatRow& row, float* out);

}  // namespace stoch::cpu
