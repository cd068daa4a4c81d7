// SPDX-License-Identifier: Apache-2.0
// A view of a matrix, or of a batch of matrices, of floats with any strides.
#pragma once

#include <cstdint>

#include "kernels/base/tensor_view.h"

namespace stoch {

// Shapes: data [batch, rows, cols]. Units: steps in elements.
struct MatrixBatch {
  float* data = nullptr;
  int64_t batch = 1, rows = 0, cols = 0;
  int64_t batch_step = 0, row_step = 0, col_step = 0;

  MatrixBatch() = default;
  // One matrix with columns next to each other.
  MatrixBatch(float* first, int64_t num_rows, int64_t num_cols, int64_t step)
      : data(first), rows(num_rows), cols(num_cols), row_step(step), col_step(1) {}
  // Requires: F32 of two or three dimensions.
  explicit MatrixBatch(const TensorView& view)
      : data(view.ptr<float>()),
        batch(view.rank == 3 ? view.dim(0) : 1),
        rows(view.dim(view.rank - 2)),
        cols(view.dim(view.rank - 1)),
        batch_step(view.rank == 3 ? view.step(0) : 0),
        row_step(view.step(view.rank - 2)),
        col_step(view.step(view.rank - 1)) {}

  // Offset of a column in a row, counted over the rows of all matrices; in kernels too.
  constexpr int64_t Offset(int64_t row, int64_t col) const {
    return row / rows * batch_step + row % rows * row_step + col * col_step;
  }
};

}  // namespace stoch
