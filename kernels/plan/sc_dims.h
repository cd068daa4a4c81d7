// SPDX-License-Identifier: Apache-2.0
// The dimension axis of SC weights and activations on a GPU: chunks, padded so that each starts at a multiple of 16.
//
// Dimension d of chunk c = d / chunk_d sits at the padded index c * chunk_stride + d % chunk_d. chunk_d = 0 in the
// configuration means one chunk of all dimensions.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define STOCH_LAYOUT_FN __host__ __device__ inline
#else
#define STOCH_LAYOUT_FN inline
#endif

namespace stoch {

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

inline constexpr int kMaxStreamCycles = 256;  // most cycles of a stream in tensor core operands

// The sizes of activations as bitstreams (kernels/cuda/sc/tensor_core/streams.h says where a bit lies).
struct StreamShape {
  int tokens = 0;
  int tile_tokens = 0;  // a multiple of 8
  int token_tiles = 0;
  int dim_blocks = 0;        // dims.padded / 16
  int blocks_per_chunk = 0;  // blocks of a chunk; the last chunk may have fewer
  int chunks = 0;
  int halves = 1;  // 2 if stoc_len > 128
  int words = 0;   // 32-bit words of a half, 1..4

  STOCH_LAYOUT_FN int units() const { return 4 * words + 2; }
  STOCH_LAYOUT_FN int unit_bytes() const { return tile_tokens * 16; }
  STOCH_LAYOUT_FN int block_bytes() const { return units() * unit_bytes(); }
  STOCH_LAYOUT_FN int tokens_padded() const { return token_tiles * tile_tokens; }
  STOCH_LAYOUT_FN int64_t bytes() const {
    return static_cast<int64_t>(token_tiles) * dim_blocks * halves * block_bytes();
  }
  STOCH_LAYOUT_FN int64_t scale_count() const { return static_cast<int64_t>(chunks) * tokens_padded(); }
};

inline StreamShape MakeStreamShape(const ScDims& dims, int64_t tokens, int tile_tokens, int stoc_len) {
  StreamShape r;
  r.tokens = static_cast<int>(tokens);
  r.tile_tokens = tile_tokens;
  r.token_tiles = static_cast<int>((tokens + tile_tokens - 1) / tile_tokens);
  r.dim_blocks = static_cast<int>(dims.padded / kTileDims);
  r.blocks_per_chunk = static_cast<int>(dims.chunk_stride / kTileDims);
  r.chunks = static_cast<int>(dims.chunks);
  const int all_words = (stoc_len + 31) / 32;
  r.halves = (all_words + 3) / 4;
  r.words = (all_words + r.halves - 1) / r.halves;
  return r;
}

}  // namespace stoch
