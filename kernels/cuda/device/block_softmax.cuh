// SPDX-License-Identifier: Apache-2.0
// Softmax of one row by a block of kRowLanes threads, with the sum in the order of kernels/math/reduce.h: thread j is
// lane j and has positions j, j + kRowLanes, ..., so `begin` is a multiple of kRowLanes.
#pragma once

#include "kernels/cuda/device/block_reduce.cuh"

namespace stoch::cuda {

// The largest of scores[begin, end), returned to every thread. shared: kBlockWarps floats of scratch.
template <typename Index>
__device__ __forceinline__ float BlockLargest(const float* scores, Index begin, Index end, float* shared) {
  float largest = BitsToFloat(0xff800000u);
  for (Index t = begin + static_cast<Index>(threadIdx.x); t < end; t += kRowLanes) largest = fmaxf(largest, scores[t]);
  return BlockMax(largest, shared);
}

// Replaces scores[begin, end) by exponential(t, score - largest) over the sum of these, and returns the sum to every
// thread. Each thread writes its own positions; others may read them after a barrier. shared: kRowLanes floats.
template <typename Index, typename Exponential>
__device__ __forceinline__ float BlockSoftmax(float* scores, Index begin, Index end, float largest, float* shared,
                                              const Exponential& exponential) {
  const Index first = begin + static_cast<Index>(threadIdx.x);
  float sum = 0.0f;
  for (Index t = first; t < end; t += kRowLanes) {
    const float e = exponential(t, scores[t] - largest);
    scores[t] = e;
    sum = sum + e;
  }
  sum = BlockFoldLanes(sum, shared);
  for (Index t = first; t < end; t += kRowLanes) scores[t] = scores[t] / sum;
  return sum;
}

}  // namespace stoch::cuda
