// SPDX-License-Identifier: Apache-2.0
// How SC weights and quantized activations lie in device memory: one layout for decode and prefill.
//
// Dimensions lie as kernels/plan/sc_dims.h says. Padding holds code 0, whose count is 0 (kSignMagnitude); kernels of
// the other codes skip padding by chunk_dims(c).
#pragma once

#include <cstdint>

#include "kernels/plan/sc_dims.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cuda {

// A weight: b of a @ b^T.
struct ScWeightView {
  ScDims dims;
  int64_t rows = 0;                // M, the output features
  int64_t rows_padded = 0;         // multiple of kRowPadding; padding rows have codes 0 and scales 0
  const uint8_t* codes = nullptr;  // [rows_padded / 32][dims.padded / 16][32][16]
  const float* scales = nullptr;   // [chunks][rows_padded]; groups and per_tensor expanded
  const float* zeros = nullptr;    // kAsymmetric: zero points [rows_padded]
  const int32_t* sums = nullptr;   // kAsymmetric: row sums of codes [rows_padded]

  // Byte offset of one code.
  STOCH_LAYOUT_FN int64_t code_offset(int64_t row, int64_t padded_dim) const {
    return (row / kTileRows * (dims.padded / kTileDims) + padded_dim / kTileDims) * kTileBytes +
           row % kTileRows * kTileDims + padded_dim % kTileDims;
  }
};

// Activations: a of a @ b^T, quantized.
struct ScActivationView {
  ScDims dims;
  int64_t tokens = 0;              // N
  const uint8_t* codes = nullptr;  // [tokens][dims.padded], 16-byte aligned rows
  const float* scales = nullptr;   // [chunks][tokens]
  const float* zeros = nullptr;    // kAsymmetric: [tokens]
  const int32_t* sums = nullptr;   // kAsymmetric: row sums of codes [tokens]
};

// Where a linear's result goes: y[n * stride + m], set or added to.
struct LinearOutput {
  float* data = nullptr;
  int64_t stride = 0;
  bool add = false;
};

}  // namespace stoch::cuda
