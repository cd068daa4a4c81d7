// SPDX-License-Identifier: Apache-2.0
// Transposes a 32 x 32 bit matrix that a warp holds, one row a lane.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/reduce.cuh"

namespace stoch::cuda::tiles {

// Bit j of lane n's word becomes bit n of lane j's result (butterfly exchange by shfl_xor). By all lanes of a warp.
__device__ __forceinline__ uint32_t TransposeBits(uint32_t word, int lane) {
  constexpr uint32_t kLow[5] = {0x55555555, 0x33333333, 0x0f0f0f0f, 0x00ff00ff, 0x0000ffff};
#pragma unroll
  for (int i = 4; i >= 0; --i) {
    const int step = 1 << i;
    const uint32_t other = __shfl_xor_sync(kAllLanes, word, step);
    word = (lane & step) == 0 ? (word & kLow[i]) | (other & kLow[i]) << step
                              : (word & ~kLow[i]) | (other >> step & kLow[i]);
  }
  return word;
}

}  // namespace stoch::cuda::tiles
