// SPDX-License-Identifier: Apache-2.0
// One head's vector of one row in the registers of a warp.
#pragma once

#include <cstdint>

#include "kernels/math/elementary.h"

namespace stoch::cuda {

inline constexpr int kMaxPairs = 4;  // RoPE pairs of one lane where head_dim may be 256

// Lane l holds dims i and i + head_dim / 2 for i = l, l + 32, ...
template <int kPairs = kMaxPairs>
struct HeadVector {
  float low[kPairs];
  float high[kPairs];
};

template <int kPairs>
__device__ inline void LoadHead(HeadVector<kPairs>& x, const float* from, int half, int lane) {
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int i = lane + 32 * j;
    x.low[j] = i < half ? from[i] : 0.0f;
    x.high[j] = i < half ? from[i + half] : 0.0f;
  }
}

// RoPE; cos_sin holds cos of pairs 0..half-1, then sin.
template <int kPairs>
__device__ inline void Rotate(HeadVector<kPairs>& x, const float* cos_sin, int half, int lane) {
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int i = lane + 32 * j;
    if (i >= half) continue;
    const float c = cos_sin[i];
    const float s = cos_sin[i + half];
    const float low = x.low[j];
    const float high = x.high[j];
    x.low[j] = (low * c) - (high * s);
    x.high[j] = (high * c) + (low * s);
  }
}

// In every lane; infinity is larger than any number, NaN larger still.
template <int kPairs>
__device__ inline float WarpMaxAbs(const HeadVector<kPairs>& x) {
  uint32_t largest = 0;  // magnitudes of floats are ordered as their bits
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    largest = max(largest, FloatToBits(x.low[j]) & 0x7fffffffu);
    largest = max(largest, FloatToBits(x.high[j]) & 0x7fffffffu);
  }
  return BitsToFloat(__reduce_max_sync(0xffffffffu, largest));
}

// Calls fn(dim, value) for this lane's dimensions.
template <int kPairs, typename Fn>
__device__ void ForEachDim(const HeadVector<kPairs>& x, int half, int lane, const Fn& fn) {
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int i = lane + 32 * j;
    if (i >= half) continue;
    fn(i, x.low[j]);
    fn(i + half, x.high[j]);
  }
}

}  // namespace stoch::cuda
