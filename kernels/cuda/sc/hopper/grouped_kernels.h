// SPDX-License-Identifier: Apache-2.0
// Arguments of the prefill kernel over slots of experts. A slot is a (row of x, expert) pair, and a tile has slots of
// one expert. Only the device knows the number of tiles.
#pragma once

#include "kernels/cuda/sc/hopper/prefill_kernels.h"

namespace stoch::cuda {

// Maps the tokens of a launch to rows of the activations: token t has slot s = slots[first_tile * tile_tokens + t] and
// is row s / row_slots; a negative s is padding.
struct SlotRows {
  const int32_t* slots = nullptr;  // [tiles][tile_tokens] slot numbers, -1: padding
  const int32_t* tiles = nullptr;  // [1] number of tiles of the call
  int first_tile = 0;              // first tile of the launch
  int row_slots = 1;               // slots that share a row
};

// As LaunchExpandStreams (streams.h), for tokens that are slots. Streams and scales of padding tokens stay undefined.
void LaunchExpandSlots(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScStreams& out,
                       const SlotRows& rows);

// The split of tiles of slots over clusters: whole tiles, round robin.
struct GroupedSchedule {
  int clusters = 1;                    // clusters of the launch
  int supers = 0;                      // super tiles (kSuperRows weight rows) of all tasks
  int chunks = 0;                      // chunks of a tile
  int first_tile = 0;                  // first tile of slots of the launch
  int most_tiles = 0;                  // tiles of slots of the launch, at most
  int max_steps = 0;                   // steps of a cluster, at most
  const int32_t* tiles = nullptr;      // device memory [1]: number of tiles of slots of the call
  const int32_t* tile_rows = nullptr;  // device memory [tiles]: slots in each tile

#if defined(__CUDACC__)
  // The tile that cluster `cluster` multiplies in step `step`; an empty piece past the last tile.
  __device__ __forceinline__ PrefillSchedule::Piece At(int cluster, int step) const {
    const int index = step * clusters + cluster;
    const int tile = index / supers;
    if (tile >= most_tiles || first_tile + tile >= *tiles) return {};
    return {index, (tile_rows[first_tile + tile] + 63) / 64, 0, chunks, 0};
  }
#endif
};

// Arguments of the prefill kernel over slots. Members without a comment mean what they mean in PrefillArgs.
struct GroupedArgs {
  ScKernelTask tasks[kMaxScTasks];              // codes and scales are replaced by those of the expert's view
  const ScWeightView* views[kMaxScTasks] = {};  // [task_count] weights of every expert, device memory [experts]
  int task_count = 0;
  ScStreams streams;
  GroupedSchedule schedule;
  const int32_t* experts = nullptr;  // [tiles] expert of each tile of slots
  const int32_t* slots = nullptr;    // [tiles][kPrefillTokens] slot numbers, -1: padding
  float gain = 0;
  const uint16_t* ranks = nullptr;
  int masks = 1;
  int levels = 128;
  uint32_t minus_one = ~0u;
  bool stagger = false;
};

// Launches the prefill kernel over tiles of slots; sets clusters and max_steps of the schedule.
// Requires: streams of 64 or 128 cycles (2 or 4 words, one half) in tiles of kPrefillTokens.
void LaunchGroupedWgmma(DeviceContext& ctx, const LinearPlan& plan, const GroupedArgs& args);

}  // namespace stoch::cuda
