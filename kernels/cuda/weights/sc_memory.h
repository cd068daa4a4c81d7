// SPDX-License-Identifier: Apache-2.0
// Places the arrays of an SC weight in one block of memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cuda {

inline int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Sizes, and offsets in bytes, of the arrays of an SC weight; Place sets the pointers of `view` for a block that begins
// at `base`.
struct ScMemory {
  ScMemory(const ScOperator& op, int64_t rows, int64_t cols) {
    view.dims = MakeScDims(cols, op.config.chunk_d);
    view.rows = rows;
    view.rows_padded = RoundUp(rows, kRowPadding);
    scales_at = RoundUp(view.rows_padded * view.dims.padded, 256);
    zeros_at = scales_at + RoundUp(view.dims.chunks * view.rows_padded * static_cast<int64_t>(sizeof(float)), 256);
    asymmetric = op.code == ScCode::kAsymmetric;
    const int64_t per_row = RoundUp(view.rows_padded * static_cast<int64_t>(sizeof(float)), 256);
    sums_at = zeros_at + (asymmetric ? per_row : 0);
    bytes = sums_at + (asymmetric ? per_row : 0);
  }
  void Place(char* base) {
    view.codes = reinterpret_cast<const uint8_t*>(base);
    view.scales = reinterpret_cast<const float*>(base + scales_at);
    if (!asymmetric) return;
    view.zeros = reinterpret_cast<const float*>(base + zeros_at);
    view.sums = reinterpret_cast<const int32_t*>(base + sums_at);
  }

  ScWeightView view;
  bool asymmetric = false;
  int64_t scales_at = 0;
  int64_t zeros_at = 0;
  int64_t sums_at = 0;
  // Size of the block.
  int64_t bytes = 0;
};

inline Buffer AllocateZeroed(DeviceContext& ctx, int64_t bytes) {
  Buffer buffer = AllocateDevice(ctx.device, static_cast<size_t>(bytes));
  STOCH_CUDA(cudaMemsetAsync(buffer.data(), 0, static_cast<size_t>(bytes), ctx.stream));
  return buffer;
}

}  // namespace stoch::cuda
