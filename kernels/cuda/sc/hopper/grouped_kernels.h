// SPDX-License-Identifier: Apache-2.0
// Arguments of the prefill kernel for slots of experts: tiles of slots, whose number the device knows.
#pragma once

#include "kernels/cuda/sc/hopper/prefill_kernels.h"

namespace stoch::cuda {

// Which rows of the activations the tokens of tiles are, of slots in tiles by expert (sc/experts/groups.h): token t of
// the streams' tiles is that of slots[first_tile * tile_tokens + t], none where that is negative.
struct SlotRows {
  const int32_t* slots = nullptr;
  const int32_t* tiles = nullptr;  // how many there are
  int first_tile = 0;
  int row_slots = 1;  // slots that share a row
};

// LaunchExpandStreams of the rows that slots take; others stay undefined.
void LaunchExpandSlots(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                       const SlotRows& rows);

// Tiles of slots by expert (sc/experts/groups.h), whole ones: each to the cluster whose turn it is.
struct GroupedSchedule {
  int clusters = 1;
  int supers = 0;  // super tiles of all tasks
  int chunks = 0;
  int first_tile = 0;  // of the slots' tiles, in this launch
  int most_tiles = 0;
  int max_steps = 0;
  const int32_t* tiles = nullptr;
  const int32_t* tile_rows = nullptr;

#if defined(__CUDACC__)
  __device__ __forceinline__ PrefillSchedule::Piece At(int cluster, int step) const {
    const int index = step * clusters + cluster;
    const int tile = index / supers;
    if (tile >= most_tiles || first_tile + tile >= *tiles) return {};
    return {index, (tile_rows[first_tile + tile] + 63) / 64, 0, chunks, 0};
  }
#endif
};

struct GroupedArgs {
  ScKernelTask tasks[kMaxScTasks];  // without codes and scales, which are those of views
  const ScWeightView* views[kMaxScTasks] = {};
  int task_count = 0;
  ScStreams streams;
  GroupedSchedule schedule;
  const int32_t* experts = nullptr;  // of tiles
  const int32_t* slots = nullptr;
  float gain = 0;
  const uint16_t* ranks = nullptr;  // as in PrefillArgs
  int masks = 1;
  int levels = 128;
  uint32_t minus_one = ~0u;
  bool stagger = false;  // set by LaunchGroupedWgmma
};

// The kernel of LaunchPrefillWgmma over grouped slots. Requires streams of 64 or 128 cycles in tiles of kPrefillTokens.
void LaunchGroupedWgmma(DeviceContext& ctx, const LinearPlan& plan, const GroupedArgs& args);

}  // namespace stoch::cuda
