// SPDX-License-Identifier: Apache-2.0
// Sliding windows for kernels that skip positions before the window: the positions that a row sees, and the positions
// that the scratch of a tile has room for.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {

#if defined(__CUDACC__)
// The first position that a row at `position` sees: 0 without a window.
__device__ __forceinline__ int32_t FirstSeen(const AttentionArgs& args, int32_t position) {
  return args.window > 0 && position >= args.window ? position + 1 - args.window : 0;
}
// The first position in the scratch of a tile whose first row is at `start_position`: FirstSeen rounded down to a
// multiple of kRowLanes.
__device__ __forceinline__ int32_t FirstKept(const AttentionArgs& args, int32_t start_position) {
  return FirstSeen(args, start_position) / kRowLanes * kRowLanes;
}
#endif

// Positions per row in a tile's scratch, a multiple of kKeyBlock: padded_length, the rounded-up length of the tile's
// context. With a window, it is no more than the positions from FirstKept to the tile's last row, or kMinWideRange if
// these are fewer.
inline int64_t TileStride(int64_t padded_length, int64_t window) {
  if (window <= 0) return padded_length;
  const int64_t seen = (kRowLanes + window + kQueryTile + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  return std::min(padded_length, std::max<int64_t>(seen, kMinWideRange));
}

}  // namespace stoch::cuda
