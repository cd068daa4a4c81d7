// SPDX-License-Identifier: Apache-2.0
// How SC weights and quantized activations lie in device memory: one layout for decode and prefill.
//
// kernels/plan/sc_dims.h defines the padded order of dimensions. Padding dimensions hold code 0, which under
// kSignMagnitude has count 0; kernels of the other codes skip padding by chunk_dims(c). Exception: padding of plain
// operands (kernels/cuda/plain/operands.h) is undefined, and the plain product skips it.
#pragma once

#include <cstdint>

#include "kernels/plan/sc_dims.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cuda {

// A quantized weight matrix: operand b of a linear a @ b^T.
struct ScWeightView {
  ScDims dims;
  int64_t rows = 0;                // output features M
  int64_t rows_padded = 0;         // multiple of kRowPadding; stored weights: codes and scales of padding rows are 0
  const uint8_t* codes = nullptr;  // [rows_padded / 32][dims.padded / 16][32][16]: tiles of 32 rows x 16 dimensions
  const float* scales = nullptr;   // [chunks][rows_padded]; a scale that rows share is repeated for each row
  // Read for kAsymmetric alone; else null, or undefined in a plain operand.
  const float* zeros = nullptr;   // zero points [rows_padded]
  const int32_t* sums = nullptr;  // row sums of codes [rows_padded]

  // Byte offset in `codes` of the code of a row at a padded dimension (ScDims::padded_index).
  STOCH_LAYOUT_FN int64_t code_offset(int64_t row, int64_t padded_dim) const {
    return (row / kTileRows * (dims.padded / kTileDims) + padded_dim / kTileDims) * kTileBytes +
           row % kTileRows * kTileDims + padded_dim % kTileDims;
  }
};

// Quantized activations: operand a of a linear a @ b^T.
struct ScActivationView {
  ScDims dims;
  int64_t tokens = 0;              // number of rows of the activations
  const uint8_t* codes = nullptr;  // [tokens][dims.padded], 16-byte aligned rows; null: the kernel quantizes x itself
  const float* scales = nullptr;   // [chunks][tokens] scales; if `codes` is null, null or written by the kernel
  // As of weights.
  const float* zeros = nullptr;   // zero points [tokens]
  const int32_t* sums = nullptr;  // row sums of codes [tokens]
};

// Destination of a linear: output feature m of token n goes to data[n * stride + m].
struct LinearOutput {
  float* data = nullptr;
  int64_t stride = 0;  // floats from one token to the next
  bool add = false;    // true: data = data + y; false: data = y
};

}  // namespace stoch::cuda
