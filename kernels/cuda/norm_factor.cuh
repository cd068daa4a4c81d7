// RMSNorm's factor of one row inside kernels whose blocks all need it.
#pragma once

#include "kernels/cuda/activations.h"
#include "kernels/cuda/device_math.cuh"

namespace stoch::cuda {

// What:     1 / sqrt(mean(x^2) + eps) of the row x[0..cols), given to every thread of the block.
// Requires: at least kRowLanes threads; `shared` has kRowLanes floats.
// Bits:     kRowLanes order of reduce.h.
__device__ inline float NormFactor(const float* x, int64_t cols, float eps, float* shared) {
  const int j = static_cast<int>(threadIdx.x);
  if (j < kRowLanes) {
    float lane = 0.0f;
    int64_t i = j;
    constexpr int kInFlight = 16;
    for (; i + (kInFlight - 1) * kRowLanes < cols; i += kInFlight * kRowLanes) {  // loads first: the sum is one chain
      float v[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) v[k] = x[i + k * kRowLanes];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) lane = Fma(v[k], v[k], lane);
    }
    for (; i < cols; i += kRowLanes) lane = Fma(x[i], x[i], lane);
    shared[j] = lane;
  }
  __syncthreads();
  if (j < kWarp) {
    float lanes[kRowLanes / kWarp];
#pragma unroll
    for (int k = 0; k < kRowLanes / kWarp; ++k) lanes[k] = shared[k * kWarp + j];
    float lane = FoldLanes<kRowLanes / kWarp>(lanes);
    for (int s = kWarp / 2; s > 0; s /= 2) lane = lane + __shfl_down_sync(kAllLanes, lane, s);
    if (j == 0) shared[0] = 1.0f / Sqrt(lane / static_cast<float>(cols) + eps);
  }
  __syncthreads();
  const float r = shared[0];
  __syncthreads();
  return r;
}

}  // namespace stoch::cuda
