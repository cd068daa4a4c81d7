// SPDX-License-Identifier: Apache-2.0
// Exact float products with rows of numbers as they are stored: F32, F16, BF16, or what a decoder reads.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/handles.h"

namespace stoch::cpu {

// out[t * out_stride + r] = or += dot(x row t, w row r).
struct ExactTarget {
  ExactRows w;
  const WeightSource* decoded = nullptr;  // instead of w: the rows of its decoder, made where they are needed
  int64_t num_rows = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  bool add = false;
};

// Bits: every dot product in kDotLanes order.
void ExactProduct(ThreadPool& pool, const Simd& simd, const float* x, int64_t x_stride, int64_t num_x, int64_t cols,
                  std::span<const ExactTarget> targets);

}  // namespace stoch::cpu
