// SPDX-License-Identifier: Apache-2.0
// RMSNorm's factor of one row inside kernels whose blocks all need it.
#pragma once

#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/prologue/activations.h"

namespace stoch::cuda {

// Lane j of kRowLanes of the sums of squares of rows x[0..kRows), at lanes[row][j], where FoldNorm finds them after a
// barrier.
// kAroundL1: of rows that kernels wrote which have ended since this one began.
// Bits:     kRowLanes order of reduce.h.
template <int kRows, bool kAroundL1 = false>
__device__ __forceinline__ void NormLane(const float* const (&x)[kRows], int cols, int j,
                                         float* const (&lanes)[kRows]) {
  constexpr int kInFlight = 16;  // loads first: a sum is one chain
  constexpr int kStep = kInFlight * kRowLanes;
  float lane[kRows] = {};
  float v[kRows][kInFlight];
  const auto add = [&] {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) lane[r] = Fma(v[r][k], v[r][k], lane[r]);
    }
  };
  // Pointers: every load would make an address of an index on its own (8B, 8 tokens: 1 % of a step).
  const float* from[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) from[r] = x[r] + j;
  const auto load = [](const float* at) { return kAroundL1 ? __ldcg(at) : *at; };
  int rest = cols;
#pragma unroll 1
  for (; rest >= kStep; rest -= kStep) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) v[r][k] = load(from[r] + k * kRowLanes);
      from[r] += kStep;
    }
    add();
  }
  if (rest > 0) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) v[r][k] = j + k * kRowLanes < rest ? load(from[r] + k * kRowLanes) : 0.0f;
    }
    add();  // + 0 changes no lane: none is -0
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) lanes[r][j] = lane[r];
}

// A lane of the row's sum of squares from each of the block's first kRowLanes threads, in `shared`, where FoldNorm
// finds them after a barrier.
// Bits:     kRowLanes order of reduce.h.
__device__ __forceinline__ void NormLanes(const float* x, int cols, float* shared) {
  const int j = static_cast<int>(threadIdx.x);
  if (j >= kRowLanes) return;
  NormLane<1>({x}, cols, j, {shared});
}

// A lane of the norm, and a thread's element, of a row that the kernel in front posts (handover/row_channel.h). Look asks for
// the first words and returns at once; a block that begins late has its row before what it asks for then.
struct PostedLane {
  static constexpr int kInFlight = 16;
  uint32_t words[kInFlight];

  template <bool kAnywhere = false>
  __device__ __forceinline__ void Look(const uint32_t* from, int rest) {
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      words[k] = 0x80000000u;  // adds nothing
      if (k * kRowLanes < rest) words[k] = kAnywhere ? PeekAnywhere(from + k * kRowLanes) : Peek(from + k * kRowLanes);
    }
  }
};
template <typename Patience = OwnPatience>
__device__ __forceinline__ void ReceiveNormLanes(PostedLane& first, const uint32_t* x, int cols, float* shared,
                                                 Patience patience = {}) {
  constexpr int kInFlight = PostedLane::kInFlight;
  const int j = static_cast<int>(threadIdx.x);
  if (j >= kRowLanes) return;
  float lane = 0.0f;
  const uint32_t* from = x + j;
  int rest = cols - j;
#pragma unroll 1
  while (true) {
    ReceiveAll(from, kRowLanes, first.words, patience);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) lane = Fma(BitsToFloat(first.words[k]), BitsToFloat(first.words[k]), lane);
    rest -= kInFlight * kRowLanes;
    if (rest <= 0) break;
    from += kInFlight * kRowLanes;
    first.Look<Patience::kAnywhere>(from, rest);
  }
  shared[j] = lane;
}

// 1 / sqrt(mean(x^2) + eps) of the row, given to every lane of each warp that calls. Every warp for itself folds the
// same numbers: cheaper than one warp, a barrier and a broadcast.
__device__ __forceinline__ float FoldNorm(const float* shared, int cols, float eps) {
  const int j = static_cast<int>(threadIdx.x % kWarp);
  float lanes[kRowLanes / kWarp];
#pragma unroll
  for (int k = 0; k < kRowLanes / kWarp; ++k) lanes[k] = shared[k * kWarp + j];
  float sum = FoldLanes<kRowLanes / kWarp>(lanes);
  // To both sides, as a + b is b + a: every lane ends with lane 0's total.
#pragma unroll
  for (int s = kWarp / 2; s > 0; s /= 2) sum = sum + __shfl_xor_sync(kAllLanes, sum, s);
  return 1.0f / Sqrt(sum / static_cast<float>(cols) + eps);
}

// 1 / sqrt(mean(x^2) + eps) of the row x[0..cols), given to every thread of the block.
// Requires: at least kRowLanes threads; `shared` has kRowLanes floats, which others may write after a barrier.
__device__ __forceinline__ float NormFactor(const float* x, int64_t cols, float eps, float* shared) {
  NormLanes(x, static_cast<int>(cols), shared);
  __syncthreads();
  return FoldNorm(shared, static_cast<int>(cols), eps);
}

}  // namespace stoch::cuda
