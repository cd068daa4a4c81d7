// How SC weights and quantized activations lie in device memory: one layout for decode and prefill.
//
// Dimensions are padded so that every chunk starts at a multiple of 16: dimension d of chunk c = d / chunk_d sits at
// the padded index c * chunk_stride + d % chunk_d. Padding holds code 0, whose count is 0 (kSignMagnitude); kernels of
// the other codes skip padding by chunk_dims(c). chunk_d = 0 in the configuration means one chunk of all dimensions.
#pragma once

#include <cstdint>

#include "kernels/sc/sc_operator.h"

#if defined(__CUDACC__)
#define STOCH_LAYOUT_FN __host__ __device__ inline
#else
#define STOCH_LAYOUT_FN inline
#endif

namespace stoch::cuda {

inline constexpr int kTileRows = 32;  // rows of a code tile
inline constexpr int kTileDims = 16;  // dimensions of a code tile: 16 bytes of one row
inline constexpr int kTileBytes = kTileRows * kTileDims;
inline constexpr int kRowPadding = 64;  // rows of a weight are padded to a multiple of this

// The dimension axis, shared by a weight and the activations it multiplies.
struct ScDims {
  int64_t dims = 0;          // D
  int64_t chunk_d = 0;       // dimensions of a chunk, >= 1
  int64_t chunks = 0;        // ceil(dims / chunk_d)
  int64_t chunk_stride = 0;  // chunk_d rounded up to 16
  int64_t padded = 0;        // padded dimensions of all chunks, a multiple of 16

  // Real and padded dimensions of chunk c.
  STOCH_LAYOUT_FN int64_t chunk_dims(int64_t c) const {
    const int64_t rest = dims - c * chunk_d;
    return rest < chunk_d ? rest : chunk_d;
  }
  STOCH_LAYOUT_FN int64_t chunk_padded(int64_t c) const {
    return (chunk_dims(c) + kTileDims - 1) / kTileDims * kTileDims;
  }
  STOCH_LAYOUT_FN int64_t padded_index(int64_t d) const { return d / chunk_d * chunk_stride + d % chunk_d; }
};

inline ScDims MakeScDims(int64_t dims, int64_t config_chunk_d) {
  ScDims r;
  r.dims = dims;
  r.chunk_d = config_chunk_d > 0 && config_chunk_d < dims ? config_chunk_d : dims;
  r.chunks = (dims + r.chunk_d - 1) / r.chunk_d;
  r.chunk_stride = (r.chunk_d + kTileDims - 1) / kTileDims * kTileDims;
  r.padded = (r.chunks - 1) * r.chunk_stride + r.chunk_padded(r.chunks - 1);
  return r;
}

// A weight: b of a @ b^T.
struct ScWeightView {
  ScDims dims;
  int64_t rows = 0;                // M
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
  int64_t rows = 0;                // N
  const uint8_t* codes = nullptr;  // [rows][dims.padded], 16-byte aligned rows
  const float* scales = nullptr;   // [chunks][rows]
  const float* zeros = nullptr;    // kAsymmetric: [rows]
  const int32_t* sums = nullptr;   // kAsymmetric: row sums of codes [rows]
};

// Where a linear's result goes: y[n * stride + m], set or added to.
struct LinearOutput {
  float* data = nullptr;
  int64_t stride = 0;
  bool add = false;
};

}  // namespace stoch::cuda
