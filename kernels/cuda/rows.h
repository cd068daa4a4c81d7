// SPDX-License-Identifier: Apache-2.0
// Ops on whole rows: embedding, gathering output rows, argmax.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/weights/weights.h"

namespace stoch::cuda {

// out[i] = table[ids[i]], F32 rows `out_stride` apart. ids: device memory.
void LaunchEmbed(DeviceContext& ctx, const EmbeddingView& table, const int32_t* ids, int64_t rows, float* out,
                 int64_t out_stride);

// out[i] = x[index[i]], rows of n floats. index: device memory.
void LaunchSelectRows(DeviceContext& ctx, const float* x, int64_t x_stride, const int32_t* index, int64_t rows,
                      int64_t n, float* out, int64_t out_stride);

// ids[i] = index of the largest of row i, the lowest of equals; 0 where no element is a number. Device memory.
void LaunchArgmax(DeviceContext& ctx, const float* logits, int64_t stride, int64_t rows, int64_t n, int32_t* ids);

}  // namespace stoch::cuda
