// SPDX-License-Identifier: Apache-2.0
// Operands of a plain product: float matrices of any strides, quantized on the fly under any scope (numbers that share
// a scale).
#pragma once

#include <cstdint>

#include "kernels/base/matrix_batch.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cuda {

// Side A is laid out as activations, side B as weights.
enum class OperandSide : uint8_t { kA, kB };

// Quantized matrices in scratch, one after the other: codes [batch][padded_rows][dims.padded], scales
// [batch][chunks][padded_rows], zero points and sums of codes [batch][padded_rows].
struct PlainOperand {
  // Number of matrices.
  int64_t batch = 1;
  int64_t rows = 0;         // rows of one matrix
  int64_t padded_rows = 0;  // rows that one matrix takes in the arrays
  ScDims dims;
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  float* zeros = nullptr;
  int32_t* sums = nullptr;

  uint8_t* codes_of(int64_t index) const { return codes + index * padded_rows * dims.padded; }
  // Views of matrix number `index`. Requires: for activations() an operand made as side A, for weight() as side B.
  ScActivationView activations(int64_t index) const {
    return {dims,
            rows,
            codes_of(index),
            scales + index * padded_rows * dims.chunks,
            zeros + index * padded_rows,
            sums + index * padded_rows};
  }
  ScWeightView weight(int64_t index) const {
    return {dims,
            rows,
            padded_rows,
            codes_of(index),
            scales + index * padded_rows * dims.chunks,
            zeros + index * padded_rows,
            sums + index * padded_rows};
  }
};

// Quantizes an operand. A scope is a group of rows (kPerRow), a matrix (kPerHead) or all matrices (kPerTensor), each
// divided into chunks of dimensions.
// Shapes: x [batch, rows, cols].
// Bits: docs/sc_arithmetic.md#2-quantizers; a scope with NaN or infinity becomes zeros and is reported to `reporter`.
PlainOperand QuantizeOperand(DeviceContext& ctx, Scratch& scratch, const MatrixBatch& x, const ScOperator& op,
                             OperandSide side, const SiteReporter& reporter);

}  // namespace stoch::cuda
