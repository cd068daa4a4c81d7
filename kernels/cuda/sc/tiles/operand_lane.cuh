// SPDX-License-Identifier: Apache-2.0
// How threads share the making of the token operands of a stage (operands.cuh, int8_operands.cuh).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/reduce.cuh"

namespace stoch::cuda::tiles {

inline constexpr int kWarpDims = 8;  // dimensions that a warp takes, for 32 tokens

// The work of one lane: kWarpDims dimensions of one token of the tile.
struct OperandLane {
  int lane = 0;      // index in the warp
  int group = 0;     // group of 32 tokens of the tile
  int first = 0;     // first dimension, counted in the stage
  int mine = 0;      // token, counted in the tile
  int64_t dim = 0;   // first dimension, counted in the chunk
  uint2 codes = {};  // codes of the eight dimensions, 0 for padding
};

// The lane of thread `thread` of the kTokens * stage_dims / kWarpDims that make a stage of kTokens tokens.
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
