// SPDX-License-Identifier: Apache-2.0
// Extremes of a quantizer scope (the numbers that share a scale), and their reduction over a warp or a block.
#pragma once

#include <cstdint>

#include "kernels/math/elementary.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Extremes of the numbers of a scope: largest magnitude, as the bits of a float (NaN and infinity compare largest), and
// the least and largest value.
struct Extremes {
  uint32_t max_abs_bits = 0;
  float min = 0;
  float max = 0;
};

__device__ inline void Observe(Extremes& e, float x, bool first) {
  const uint32_t bits = FloatToBits(x) & 0x7fffffffu;
  e.max_abs_bits = max(e.max_abs_bits, bits);
  e.min = first || x < e.min ? x : e.min;
  e.max = first || x > e.max ? x : e.max;
}

__device__ inline Extremes Merge(const Extremes& a, const Extremes& b) {
  return {max(a.max_abs_bits, b.max_abs_bits), b.min < a.min ? b.min : a.min, b.max > a.max ? b.max : a.max};
}

__device__ inline Extremes WarpExtremes(Extremes e) {
  for (int s = kWarp / 2; s > 0; s /= 2) {
    const Extremes other{__shfl_xor_sync(kAllLanes, e.max_abs_bits, s), __shfl_xor_sync(kAllLanes, e.min, s),
                         __shfl_xor_sync(kAllLanes, e.max, s)};
    e = Merge(e, other);
  }
  return e;
}

// The extremes over a block of up to 1024 threads, returned to every thread. shared: 32 entries of scratch. Contains
// two barriers.
__device__ inline Extremes BlockExtremes(Extremes e, Extremes* shared) {
  e = WarpExtremes(e);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (threadIdx.x % kWarp == 0) shared[warp] = e;
  __syncthreads();
  e = shared[0];
  for (int w = 1; w < warps; ++w) e = Merge(e, shared[w]);
  __syncthreads();
  return e;
}

}  // namespace stoch::cuda
