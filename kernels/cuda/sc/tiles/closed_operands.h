// SPDX-License-Identifier: Apache-2.0
// Makes the token operands of tiles for operators with the closed form (docs/closed-form.md) from activations' codes.
#pragma once

#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/tables.h"

namespace stoch::cuda {

// Destination of the operands, in device memory.
struct ClosedOperands {
  // [token tiles][chunks][stages], TileOperandBytes in all, 16-byte aligned; closed_form.cuh and int8_form.cuh have the
  // layout of a stage.
  uint8_t* operands = nullptr;
  float* scales = nullptr;  // [chunks][scale_stride], 0 for padding tokens
  int scale_stride = 0;     // tokens of all tiles, padding included
};

// Writes the operands of closed_form.cuh, and the scales, for all tokens of `a`.
// Requires: tables.tile_entries is not null; tile_tokens is kTileTokensNarrow or kTileTokensWide.
void LaunchClosedOperands(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, int tile_tokens,
                          const ClosedOperands& out);
// Writes the operands of int8_form.cuh, and the scales, for all tokens of `a`.
// Requires: tables.int8_entries is not null; tile_tokens is kTileTokensNarrow or kTileTokensWide.
void LaunchInt8Operands(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, int tile_tokens,
                        const ClosedOperands& out);

}  // namespace stoch::cuda
