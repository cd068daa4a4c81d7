// SPDX-License-Identifier: Apache-2.0
// Activations as bitstreams: what the binary tensor cores multiply with weights (prefill.h).
//
// A dimension's activation is stoc_len bits, complemented where it is negative, in the order of ScOperator::streams_a.
// Streams longer than 128 cycles are cut in `halves` parts, each treated as a dimension of its own. The bits of 16
// dimensions and `tile_tokens` tokens (a block) are cut in units of one 32-bit word of four dimensions, so that a unit
// is one 16-byte column of a tensor core operand and lane t of a quad meets only dimensions 4t..4t+3:
//   [token tile][dim block of 16][half][unit][token][t = 0..3] u32
//   unit j * words + w, j < 4, w < words: word w of dimension 4t + j
//   unit 4 * words:     byte j = 1 where dimension 4t + j is negative     } int8 factors of the sign correction,
//   unit 4 * words + 1: byte j = (1 where negative) - ones of its bits    } see operand.cuh
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/cuda/sc/format/tables.h"

namespace stoch::cuda {

struct ScStreams : StreamShape {
  uint8_t* data = nullptr;  // bytes() of them, 128-byte aligned
  float* scales = nullptr;  // [chunks][tokens_padded()], 0 for padding tokens
  float* gains = nullptr;   // the same of rows with lengths of their own, else null

  STOCH_LAYOUT_FN int64_t block_offset(int token_tile, int dim_block, int half) const {
    return ((static_cast<int64_t>(token_tile) * dim_blocks + dim_block) * halves + half) * block_bytes();
  }
};

// Rows with lengths of their own: LengthView::streams, and the slots of the rows.
struct RowStreams {
  const StreamTable* tables = nullptr;
  RowSlots slots;
};

// Writes the streams and scales of `a`, with `rows` gains too, and zeroes flags[0..flag_count).
// Requires: tables of a kSignMagnitude operator with streams; of rows with several lengths, of the longest.
void LaunchExpandStreams(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                         int* flags, int flag_count, const RowStreams* rows = nullptr);

// Streams and scales of rows of floats: f(x) is quantized on the way, as LaunchQuantize does it, and codes do not pass through device
// memory. Takes a float a row of `scratch`.
// Requires: a plan whose quantizer is kStreams.
void LaunchStreamRows(DeviceContext& ctx, Scratch& scratch, const ScTables& tables, const ScDims& dims,
                      const RowSource& source, const ScStreams& out, int* flags, int flag_count,
                      const SiteReporter& reporter);

}  // namespace stoch::cuda
