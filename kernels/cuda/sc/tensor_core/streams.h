// SPDX-License-Identifier: Apache-2.0
// Activations as bitstreams in device memory, the operand B of binary tensor core products (wgmma and mma.sync).
//
// An activation of one dimension is a stream of stoc_len bits in the order of ScOperator::streams_a, complemented if
// the activation is negative. A stream of more than 128 cycles is cut in two halves, each treated as a dimension of its
// own; a half has 1 to 4 words of 32 bits. The layout is
//   [token tile][block of 16 dimensions][half][unit][token of the tile][t = 0..3] u32
// Lane t of a quad (four lanes of a warp) multiplies dimensions 4t to 4t + 3 of a block. A unit is one 16-byte column
// of the operand for each token; word t of its column is
//   unit j * words + w: word w of dimension 4t + j, for j < 4 and w < words
//   unit 4 * words:     byte j = 1 if dimension 4t + j is negative, else 0
//   unit 4 * words + 1: byte j = (1 if dimension 4t + j is negative, else 0) - (ones of the stored half stream)
// The last two units are the int8 factors of the sign correction (operand.cuh).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/cuda/sc/format/tables.h"

namespace stoch::cuda {

// The streams of a call's tokens, with their scales, as kernels see them; passed by value.
struct ScStreams : StreamShape {
  uint8_t* data = nullptr;  // bytes() bytes, 128-byte aligned
  // [chunks][tokens_padded()] scales. Those of padding tokens are 0, or undefined if tokens are slots of experts or
  // rows of a group of lengths.
  float* scales = nullptr;
  float* gains = nullptr;  // [chunks][tokens_padded()] value of one count if rows have their own lengths, else null

  // Byte offset in `data` of one half of a block of 16 dimensions of a token tile.
  STOCH_LAYOUT_FN int64_t block_offset(int token_tile, int dim_block, int half) const {
    return ((static_cast<int64_t>(token_tile) * dim_blocks + dim_block) * halves + half) * block_bytes();
  }
};

// Streams of rows that have stream lengths of their own.
struct RowStreams {
  const StreamTable* tables = nullptr;  // device memory [slots]: LengthView::streams or LengthGroup::streams
  RowSlots slots;                       // slot of every row
};

// Writes the streams and scales of `a` to `out`, and zeroes flags[0..flag_count) in device memory for the kernel that
// multiplies. `rows`: the rows have stream lengths of their own, and out.gains is written too; null: all rows have the
// length of `tables`.
// Requires: `tables` of a kSignMagnitude operator with streams; with `rows`, of the operator in whose cycle order
//           rows->tables are.
void LaunchExpandStreams(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                         int* flags, int flag_count, const RowStreams* rows = nullptr);

// Writes the streams and scales of f(x) for rows of floats, and zeroes flags[0..flag_count). One kernel quantizes and
// expands, so codes never go to device memory; they equal those of LaunchQuantize.
// Requires: a plan whose quantizer is ScQuantizer::kStreams.
// Scratch:  one float a row, if the prologue is RMSNorm.
void LaunchStreamRows(DeviceContext& ctx, Scratch& scratch, const ScTables& tables, const ScDims& dims,
                      const RowSource& source, const ScStreams& out, int* flags, int flag_count,
                      const SiteReporter& reporter);

}  // namespace stoch::cuda
