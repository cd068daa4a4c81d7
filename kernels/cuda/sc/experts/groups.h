// SPDX-License-Identifier: Apache-2.0
// Groups the slots of a call by expert into tiles that tensor cores multiply, on the device. A slot is a (row, chosen
// expert) pair.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Tiles of slots, all arrays in device memory. The slots of a tile chose the same expert.
struct ExpertGroups {
  int32_t* tiles = nullptr;    // [1] number of tiles
  int32_t* experts = nullptr;  // [max_tiles] expert of each tile
  int32_t* rows = nullptr;     // [max_tiles] number of slots in each tile
  int32_t* slots = nullptr;    // [max_tiles][tile_slots] slot numbers, -1 after a tile's last slot
};

// Sorts slots 0..slots - 1 into tiles of up to tile_slots slots; slot s chose expert chosen[s] (device memory). Memory
// of the result is taken from `scratch`. The order of slots within an expert is not deterministic, which changes no
// bits: the output of a slot depends on that slot alone.
// Requires: max_tiles tiles suffice for any choice (ExpertPlan::max_tiles).
ExpertGroups LaunchGroupSlots(DeviceContext& ctx, Scratch& scratch, const int32_t* chosen, int64_t slots,
                              int64_t experts, int64_t max_tiles, int tile_slots);

}  // namespace stoch::cuda
