// SPDX-License-Identifier: Apache-2.0
// Products with rows of 16-bit floats as integers, whose sums have no order (math/fixed_point.h).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/thread_pool.h"

namespace stoch::cpu {

// out[t * out_stride + r] = or += the product of x row t and w row r.
struct FixedTarget {
  ExactRows w;                    // F16 or BF16
  const float* scales = nullptr;  // [num_rows]: FixedScale of every row of w
  int64_t num_rows = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  bool add = false;
};

// Requires: x finite, cols <= kMaxFixedColumns.
// Bits: those of math/fixed_point.h.
void FixedProduct(ThreadPool& pool, const Simd& simd, const float* x, int64_t x_stride, int64_t num_x, int64_t cols,
                  std::span<const FixedTarget> targets);

}  // namespace stoch::cpu
