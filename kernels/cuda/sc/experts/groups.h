// SPDX-License-Identifier: Apache-2.0
// The slots of a call by expert, in tiles, without the host: what tensor cores multiply together.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Device memory. Tile t of *tiles has rows[t] slots of experts[t]: slots[t * tile_slots ..]; -1 after them.
struct ExpertGroups {
  int32_t* tiles = nullptr;
  int32_t* experts = nullptr;  // [max_tiles]
  int32_t* rows = nullptr;     // [max_tiles]
  int32_t* slots = nullptr;    // [max_tiles * tile_slots]
};

// Requires: every group fits max_tiles (ExpertPlan::max_tiles). The order of slots within an expert is not defined:
//           the result of one depends on that slot alone.
ExpertGroups LaunchGroupSlots(DeviceContext& ctx, Scratch& scratch, const int32_t* chosen, int64_t slots,
                              int64_t experts, int64_t max_tiles, int tile_slots);

}  // namespace stoch::cuda
