// SPDX-License-Identifier: Apache-2.0
// Operands of a plain product from floats of any strides, quantized on the fly under any scope.
#pragma once

#include <cstdint>

#include "kernels/base/matrix_batch.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cuda {

enum class OperandSide : uint8_t { kA, kB };

// Matrices in scratch, batch after batch.
struct PlainOperand {
  int64_t batch = 1;
  int64_t rows = 0;         // of one
  int64_t padded_rows = 0;  // that one takes
  ScDims dims;
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  float* zeros = nullptr;
  int32_t* sums = nullptr;

  uint8_t* codes_of(int64_t index) const { return codes + index * padded_rows * dims.padded; }
  // Requires: made as side A, and as side B.
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

// Shapes: x [batch, rows, cols]. A scope is a group of rows, a matrix (kPerHead) or all of them (kPerTensor).
// Bits:   docs/sc_arithmetic.md#2-quantizers; a scope with NaN or infinity becomes zeros and is reported.
PlainOperand QuantizeOperand(DeviceContext& ctx, Scratch& scratch, const MatrixBatch& x, const ScOperator& op,
                             OperandSide side, const SiteReporter& reporter);

}  // namespace stoch::cuda
