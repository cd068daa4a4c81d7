// SPDX-License-Identifier: Apache-2.0
// One attention head's vector of one row, held in the registers of a warp.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/exchange.cuh"
#include "kernels/math/elementary.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {

inline constexpr int kMaxPairs = 4;  // RoPE pairs of one lane, for head_dim up to 256

// Lane l holds dimensions i (low) and i + head_dim / 2 (high) of the head for i = l, l + 32, ...: RoPE rotates these
// pairs. Every function below is called by a whole warp; its `half` is head_dim / 2.
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

// Loads the head from words that the previous kernel posts (exchange.cuh): polls until all words have arrived.
template <int kPairs>
__device__ inline void ReceiveHead(HeadVector<kPairs>& x, const uint32_t* from, int half, int lane) {
  uint32_t words[2 * kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) words[j] = words[kPairs + j] = lane + 32 * j < half ? 0 : 0x80000000u;
  bool all = false;
  while (!all) {
    all = true;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      if (words[j] == 0) words[j] = Peek(from + lane + 32 * j);
      if (words[kPairs + j] == 0) words[kPairs + j] = Peek(from + half + lane + 32 * j);
    }
#pragma unroll
    for (int j = 0; j < 2 * kPairs; ++j) all = all && words[j] != 0;
  }
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    x.low[j] = BitsToFloat(words[j]);
    x.high[j] = BitsToFloat(words[kPairs + j]);
  }
  __syncwarp();
}

// RMSNorm of the head with weights w, as NormHeadsCall defines it. Requires: half is a multiple of 32.
template <int kPairs>
__device__ inline void NormHead(HeadVector<kPairs>& x, const HeadVector<kPairs>& w, float eps, int half) {
  // Lane i of the sum (the 256 lanes of reduce.h) adds dimension i alone. This thread has dimensions lane + 32 j
  // (low[j]) and half + lane + 32 j (high[j]).
  constexpr int kEach = kRowLanes / 32;
  static_assert(2 * kPairs <= kEach);
  float lanes[kEach] = {};
  const int groups = half / 32;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      if (k == j && k < groups) lanes[k] = Fma(x.low[j], x.low[j], 0.0f);
      if (k == groups + j && j < groups) lanes[k] = Fma(x.high[j], x.high[j], 0.0f);
    }
  }
  float sum = FoldLanes<kEach>(lanes);
  // Both lanes of a shuffle add the same two numbers and a + b equals b + a, so every thread ends with the total.
#pragma unroll
  for (int s = 16; s > 0; s /= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, s);
  const float r = 1.0f / Sqrt(sum / static_cast<float>(2 * half) + eps);
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    x.low[j] = (x.low[j] * r) * w.low[j];
    x.high[j] = (x.high[j] * r) * w.high[j];
  }
}

// RoPE: rotates each pair by an angle; turn.low holds the cosines, turn.high the sines.
template <int kPairs>
__device__ inline void Rotate(HeadVector<kPairs>& x, const HeadVector<kPairs>& turn, int half, int lane) {
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    if (lane + 32 * j >= half) continue;
    const float low = x.low[j];
    const float high = x.high[j];
    x.low[j] = (low * turn.low[j]) - (high * turn.high[j]);
    x.high[j] = (high * turn.low[j]) + (low * turn.high[j]);
  }
}

// RMSNorm of the head with weights [head_dim] in memory.
template <int kPairs>
__device__ inline void NormHead(HeadVector<kPairs>& x, const float* weight, float eps, int half, int lane) {
  HeadVector<kPairs> w;
  LoadHead(w, weight, half, lane);
  NormHead(x, w, eps, half);
}

// RoPE with angles in memory. cos_sin: [2][half], the cosines of the pairs, then the sines.
template <int kPairs>
__device__ inline void Rotate(HeadVector<kPairs>& x, const float* cos_sin, int half, int lane) {
  HeadVector<kPairs> turn;
  LoadHead(turn, cos_sin, half, lane);
  Rotate(x, turn, half, lane);
}

// The largest magnitude of the head, returned to every lane. Infinity is larger than any number, NaN larger than
// infinity.
template <int kPairs>
__device__ inline float WarpMaxAbs(const HeadVector<kPairs>& x) {
  uint32_t largest = 0;  // bits of a magnitude; they compare like the floats
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    largest = max(largest, FloatToBits(x.low[j]) & 0x7fffffffu);
    largest = max(largest, FloatToBits(x.high[j]) & 0x7fffffffu);
  }
  return BitsToFloat(__reduce_max_sync(0xffffffffu, largest));
}

// Calls fn(dim, value) for each dimension that this lane holds.
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
