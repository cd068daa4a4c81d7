// SPDX-License-Identifier: Apache-2.0
// The arithmetic written down once more, as near to its definition as possible and sharing no code with a backend
// beyond kernels/math: what op tests compare with.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sc/sc_operator.h"

namespace stoch::test {

struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> values;  // row-major

  Matrix() = default;
  Matrix(int64_t num_rows, int64_t num_cols)
      : rows(num_rows), cols(num_cols), values(static_cast<size_t>(num_rows * num_cols)) {}
  float& at(int64_t row, int64_t col) { return values[static_cast<size_t>(row * cols + col)]; }
  float at(int64_t row, int64_t col) const { return values[static_cast<size_t>(row * cols + col)]; }
};

// Normal numbers with rows of different size, a few zeros and outliers.
Matrix RandomMatrix(uint64_t seed, int64_t rows, int64_t cols);

Matrix Transposed(const Matrix& m);

// A @ b^T in stochastic computing (docs/sc_arithmetic.md), operands as one batch.
Matrix DefineScProduct(const Matrix& a, const Matrix& b, const ScOperator& op);

// A @ b^T exactly, every dot product in kDotLanes order.
Matrix DefineExactProduct(const Matrix& a, const Matrix& b);

// A @ b^T as integers, as kernels/math/fixed_point.h says it. Requires: finite numbers, b of 16-bit floats.
Matrix DefineFixedProduct(const Matrix& a, const Matrix& b);

// Softmax of the first `visible` entries of a row, the rest zero.
void DefineSoftmax(float* scores, int64_t visible, int64_t n);

}  // namespace stoch::test
