// SPDX-License-Identifier: Apache-2.0
// How the threads that make the token operands of a stage (operands.cuh, int8_operands.cuh) divide the work.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/reduce.cuh"

namespace stoch::cuda::tiles {

inline constexpr int kWarpDims = 8;  // dimensions that a warp takes, for 32 tokens

// The work of one lane: kWarpDims dimensions of one token of the tile.
struct OperandLane {
  int lane = 0;      // index in the warp
  int group = 0;     // index in the tile of the group of 32 tokens
  int first = 0;     // index in the stage of the first dimension
  int mine = 0;      // index in the tile of the token
  int64_t dim = 0;   // index in the chunk of the first dimension
  uint2 codes = {};  // codes of the eight dimensions, 0 for padding
};

// The work of thread `thread` among the threads that make a stage of kTokens tokens, one for each token and kWarpDims
// dimensions. stage_dim: the stage's first dimension in the chunk. Leaves `codes` 0.
template <int kTokens>
__device__ __forceinline__ OperandLane OperandLaneOf(int thread, int64_t stage_dim) {
  constexpr int kGroups = kTokens / kWarp;
  const int warp = thread / kWarp;
  OperandLane lane;
  lane.lane = thread % kWarp;
  lane.group = warp % kGroups;
  lane.first = warp / kGroups * kWarpDims;
  lane.mine = lane.group * kWarp + lane.lane;
  lane.dim = stage_dim + lane.first;
  return lane;
}

}  // namespace stoch::cuda::tiles
