// SPDX-License-Identifier: Apache-2.0
// Ops on whole rows: embedding, gathering output rows, argmax.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/weights/weights.h"

namespace stoch::cuda {

// out[i] = table[ids[i]] for i < rows, as F32. out_stride: floats from one output row to the next. ids: [rows] in
// device memory.
void LaunchEmbed(DeviceContext& ctx, const EmbeddingView& table, const int32_t* ids, int64_t rows, float* out,
                 int64_t out_stride);

// out[i] = x[index[i]] for i < rows; a row has n floats. x_stride, out_stride: floats from one row to the next. index:
// [rows] in device memory.
void LaunchSelectRows(DeviceContext& ctx, const float* x, int64_t x_stride, const int32_t* index, int64_t rows,
                      int64_t n, float* out, int64_t out_stride);

// ids[i] = column of the largest number of row i of logits [rows][n], the lowest column among equal ones; 0 if all
// elements of the row are NaN. stride: floats from one row to the next. All pointers are device memory.
void LaunchArgmax(DeviceContext& ctx, const float* logits, int64_t stride, int64_t rows, int64_t n, int32_t* ids);

}  // namespace stoch::cuda
