// SPDX-License-Identifier: Apache-2.0
// Exact dot products of rows of x with rows of a weight, cut into register tiles (Simd::dot_rows).
//
// V is the instruction set: a type without linkage, so that every instantiation stays inside the file that makes it
// (avx512.h says why):
//   kTokens            rows of x of a tile; what remains goes one by one
//   RowsOf(tokens)     rows of w of a tile of so many rows of x
//   Tile<kType, kX, kW, kFirst>(x, x_stride, w, w_bytes, cols, out, out_stride, add)
//                      out[t][r] = dot of x[t] and w[r], added where `add` says so; kX rows of x, kW of w. kFirst: no
//                      tile has read these rows of w before.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd/simd.h"

namespace stoch::cpu {

template <typename V>
struct DotRowsBy {
  // Arguments as Simd::dot_rows.
  static void Run(const float* x, int64_t x_stride, int64_t num_x, const ExactRows& w, int64_t num_w, int64_t cols,
                  float* out, int64_t out_stride, bool add) {
    switch (w.dtype) {
      case DType::kF32: return Rows<DType::kF32>(x, x_stride, num_x, w, num_w, cols, out, out_stride, add);
      case DType::kF16: return Rows<DType::kF16>(x, x_stride, num_x, w, num_w, cols, out, out_stride, add);
      case DType::kBF16: return Rows<DType::kBF16>(x, x_stride, num_x, w, num_w, cols, out, out_stride, add);
      case DType::kU8:
      case DType::kI8:
      case DType::kI32:
      case DType::kI64: return;  // ExactRows are floats
    }
  }

 private:
  template <DType kType>
  static void Rows(const float* x, int64_t x_stride, int64_t num_x, const ExactRows& w, int64_t num_w, int64_t cols,
                   float* out, int64_t out_stride, bool add) {
    const char* rows = static_cast<const char*>(w.data);
    const int64_t w_bytes = w.stride * (kType == DType::kF32 ? 4 : 2);
    const auto columns = [&]<int kX, bool kFirst>(int64_t t) {
      Columns<kType, kX, kFirst>(x + t * x_stride, x_stride, rows, w_bytes, num_w, cols, out + t * out_stride,
                                 out_stride, add);
    };
    constexpr int kX = V::kTokens;
    int64_t t = 0;
    for (; t + kX <= num_x; t += kX) {
      t == 0 ? columns.template operator()<kX, true>(t) : columns.template operator()<kX, false>(t);
    }
    for (; t < num_x; ++t) t == 0 ? columns.template operator()<1, true>(t) : columns.template operator()<1, false>(t);
  }

  template <DType kType, int kX, bool kFirst>
  static void Columns(const float* x, int64_t x_stride, const char* w, int64_t w_bytes, int64_t num_w, int64_t cols,
                      float* out, int64_t out_stride, bool add) {
    constexpr int kW = V::RowsOf(kX);
    int64_t r = 0;
    for (; r + kW <= num_w; r += kW) {
      V::template Tile<kType, kX, kW, kFirst>(x, x_stride, w + r * w_bytes, w_bytes, cols, out + r, out_stride, add);
    }
    for (; r < num_w; ++r) {
      V::template Tile<kType, kX, 1, false>(x, x_stride, w + r * w_bytes, w_bytes, cols, out + r, out_stride, add);
    }
  }
};

}  // namespace stoch::cpu
