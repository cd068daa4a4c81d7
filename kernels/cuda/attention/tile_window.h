// SPDX-License-Identifier: Apache-2.0
// Sliding windows of kernels that skip what is before them: which positions a row sees, and which its scratch holds.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {

#if defined(__CUDACC__)
// The first position that a row at `position` sees.
__device__ __forceinline__ int32_t FirstSeen(const AttentionArgs& args, int32_t position) {
  return args.window > 0 && position >= args.window ? position + 1 - args.window : 0;
}
// The first position in the scratch of a tile that starts at `start_position`: a multiple of kRowLanes.
__device__ __forceinline__ int32_t FirstKept(const AttentionArgs& args, int32_t start_position) {
  return FirstSeen(args, start_position) / kRowLanes * kRowLanes;
}
#endif

// Positions of a tile's scratch, a multiple of kKeyBlock: all up to `padded_length`, or those that its rows see.
inline int64_t TileStride(int64_t padded_length, int64_t window) {
  if (window <= 0) return padded_length;
  const int64_t seen = (kRowLanes + window + kQueryTile + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  return std::min(padded_length, std::max<int64_t>(seen, kMinWideRange));
}

}  // namespace stoch::cuda
