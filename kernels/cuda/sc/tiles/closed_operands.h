// SPDX-License-Identifier: Apache-2.0
// Activations as the closed form multiplies them, with binary products and without.
#pragma once

#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/tables.h"

namespace stoch::cuda {

struct ClosedOperands {
  uint8_t* operands = nullptr;  // TileOperandBytes, aligned to 16: [token tile][chunk][stage], the loop body says what
  float* scales = nullptr;      // [chunks][scale_stride], 0 for padding tokens
  int scale_stride = 0;         // tokens of all tiles
};

// Requires: tables of an operator with tile entries; tile_tokens of kTileTokensNarrow or kTileTokensWide.
void LaunchClosedOperands(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, int tile_tokens,
                          const ClosedOperands& out);
// Those of int8_form.cuh. Requires: tables with int8 entries.
void LaunchInt8Operands(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, int tile_tokens,
                        const ClosedOperands& out);

}  // namespace stoch::cuda
