// SPDX-License-Identifier: Apache-2.0
// What the calls of a decoder layer are made of: matrices in the buffers of a device, columns of them, norms.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "models/decoder/shard.h"

namespace stoch {

// A dense F32 matrix in a buffer, behind `first` floats.
inline TensorView MatrixIn(const Buffer& buffer, int64_t rows, int64_t cols, int64_t first = 0) {
  STOCH_CHECK((first + rows * cols) * 4 <= static_cast<int64_t>(buffer.bytes()));
  return MakeView(static_cast<char*>(buffer.data()) + first * 4, DType::kF32, buffer.device(), rows, cols);
}

// Columns `range`, times `scale`, of a matrix.
inline TensorView Columns(const TensorView& matrix, const IndexRange& range, int64_t scale = 1) {
  return Slice(matrix, 1, range.begin * scale, range.size() * scale);
}

// Puts an RMSNorm of the rows in front, with a table for 1 / sqrt or null; none where there is no weight. A LinearCall or an
// ExpertLinearCall.
// Requires: call->x; a weight for each of its columns.
template <typename Call>
void AddNorm(const Buffer& weight, double eps, const NonlinearTable* table, Call* call) {
  if (weight.bytes() == 0) return;
  call->table = table;
  call->prologue = Prologue::kRmsNorm;
  call->norm_weight = MakeView(weight.data(), DType::kF32, call->x.device, call->x.dim(1));
  call->norm_eps = static_cast<float>(eps);
}

}  // namespace stoch
