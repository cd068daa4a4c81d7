// SPDX-License-Identifier: Apache-2.0
// Reductions over a block of kRowLanes threads, in the order of summation that kernels/math/reduce.h fixes.
#pragma once

#include <cstdint>

#include "kernels/math/elementary.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {

inline constexpr int kBlockWarps = kRowLanes / 32;

// The largest `value` of the block, returned to every thread. shared: kBlockWarps floats of scratch. Contains two
// barriers.
__device__ inline float BlockMax(float value, float* shared) {
#pragma unroll
  for (int s = 16; s > 0; s /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, s));
  __syncthreads();  // an earlier call may still read `shared`
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = value;
  __syncthreads();
  value = shared[0];
#pragma unroll
  for (int w = 1; w < kBlockWarps; ++w) value = fmaxf(value, shared[w]);
  return value;
}

// The sum of kRowLanes values in shared memory, folded by halves (reduce.h) and returned to every thread of the calling
// warps. Value 32 w + l is shared[w * kStride + l]. Contains no barrier.
template <int kStride>
__device__ __forceinline__ float FoldShared(const float* shared) {
  // Every warp folds all 256 sums: that costs less than a fold by one warp and a broadcast.
  const int lane = static_cast<int>(threadIdx.x & 31);
  float value[kBlockWarps];
#pragma unroll
  for (int w = 0; w < kBlockWarps; ++w) value[w] = shared[w * kStride + lane];
#pragma unroll
  for (int s = kBlockWarps / 2; s > 0; s /= 2) {
#pragma unroll
    for (int w = 0; w < s; ++w) value[w] = value[w] + value[w + s];
  }
  float total = value[0];
#pragma unroll
  for (int s = 16; s > 0; s /= 2) total = total + __shfl_down_sync(0xffffffffu, total, s);
  return __shfl_sync(0xffffffffu, total, 0);
}

// The sum of kRowLanes values v[j], folded by halves (v[j] += v[j + s] for s = kRowLanes / 2, ..., 1, as in reduce.h)
// and returned to every thread; thread j passes v[j] as lane_sum. shared: kRowLanes floats of scratch. Contains two
// barriers.
__device__ inline float BlockFoldLanes(float lane_sum, float* shared) {
  __syncthreads();
  shared[threadIdx.x] = lane_sum;
  __syncthreads();
  return FoldShared<32>(shared);
}

// The largest `value` of the block, returned to every thread, with a single barrier. shared: kBlockWarps words, 16-byte
// aligned, that nothing else in the kernel uses.
__device__ __forceinline__ float BlockMaxOnce(float value, int32_t* shared) {
  // Maps the bits of a float to an integer that compares in the float's order; applied twice, it gives the bits back.
  const auto ordered = [](int32_t bits) { return bits ^ (bits >> 31 & 0x7fffffff); };
  const int32_t largest = __reduce_max_sync(0xffffffffu, ordered(static_cast<int32_t>(FloatToBits(value))));
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = largest;
  __syncthreads();
  const auto* vectors = reinterpret_cast<const int4*>(shared);
  int4 m = vectors[0];
#pragma unroll
  for (int i = 1; i < kBlockWarps / 4; ++i) {
    const int4 n = vectors[i];
    m = make_int4(max(m.x, n.x), max(m.y, n.y), max(m.z, n.z), max(m.w, n.w));
  }
  return BitsToFloat(static_cast<uint32_t>(ordered(max(max(m.x, m.y), max(m.z, m.w)))));
}

}  // namespace stoch::cuda
