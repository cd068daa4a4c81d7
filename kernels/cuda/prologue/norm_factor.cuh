// SPDX-License-Identifier: Apache-2.0
// RMSNorm's factor of a row, for kernels in which every block needs it.
#pragma once

#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/prologue/activations.h"

namespace stoch::cuda {

// Computes lane j of the kRowLanes partial sums of squares (kernels/math/reduce.h) of kRows rows, and writes it to
// lanes[row][j]; called by kRowLanes threads. FoldNorm reads the lanes after a barrier. kAroundL1: bypass the L1, for
// rows that other kernels wrote after this kernel began.
// Bits: kRowLanes order of reduce.h.
template <int kRows, bool kAroundL1 = false>
__device__ __forceinline__ void NormLane(const float* const (&x)[kRows], int cols, int j,
                                         float* const (&lanes)[kRows]) {
  constexpr int kInFlight = 16;  // loads issued ahead of the sum, which is one dependent chain
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
  // Pointers advance instead of an index, because with an index each load computes its own address (1 % of a step of 8
  // tokens with an 8B model).
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
    add();  // squares of 0 change no sum, because none is -0
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) lanes[r][j] = lane[r];
}

// Computes the kRowLanes partial sums of squares of one row, by the block's first kRowLanes threads, into `shared`
// [kRowLanes]; FoldNorm reads them after a barrier.
// Bits: kRowLanes order of reduce.h.
__device__ __forceinline__ void NormLanes(const float* x, int cols, float* shared) {
  const int j = static_cast<int>(threadIdx.x);
  if (j >= kRowLanes) return;
  NormLane<1>({x}, cols, j, {shared});
}

// Words of one lane (columns j, j + kRowLanes, ...) of a row that the kernel before posts (handover/row_channel.h).
// Look loads the first kInFlight words and returns at once, so that a block which starts late has its row before it
// issues other loads. `from` points to the lane's first word; rest: columns from there to the end of the row.
struct PostedLane {
  static constexpr int kInFlight = 16;
  uint32_t words[kInFlight];

  template <bool kAnywhere = false>
  __device__ __forceinline__ void Look(const uint32_t* from, int rest) {
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      words[k] = 0x80000000u;  // -0 as a word: its square adds nothing
      if (k * kRowLanes < rest) words[k] = kAnywhere ? PeekAnywhere(from + k * kRowLanes) : Peek(from + k * kRowLanes);
    }
  }
};
// NormLanes of a posted row: polls the words of row x, starting with those in `first` (Look), and writes the partial
// sums of squares to `shared` [kRowLanes]. Called by a whole block; the first kRowLanes threads work.
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

// RMSNorm's factor 1 / sqrt(mean(x^2) + eps) from the kRowLanes partial sums in `shared`, returned to every lane of the
// calling warps. Each warp folds all partial sums itself: that costs less than a fold by one warp, a barrier and a
// broadcast.
__device__ __forceinline__ float FoldNorm(const float* shared, int cols, float eps) {
  const int j = static_cast<int>(threadIdx.x % kWarp);
  float lanes[kRowLanes / kWarp];
#pragma unroll
  for (int k = 0; k < kRowLanes / kWarp; ++k) lanes[k] = shared[k * kWarp + j];
  float sum = FoldLanes<kRowLanes / kWarp>(lanes);
  // Both lanes of a shuffle add the same two numbers and a + b equals b + a, so every lane ends with the total.
#pragma unroll
  for (int s = kWarp / 2; s > 0; s /= 2) sum = sum + __shfl_xor_sync(kAllLanes, sum, s);
  return 1.0f / Sqrt(sum / static_cast<float>(cols) + eps);
}

// RMSNorm's factor 1 / sqrt(mean(x^2) + eps) of the row x[0..cols), returned to every thread of the block.
// Requires: called by a whole block of at least kRowLanes threads. `shared`: kRowLanes floats of scratch, which may be
//           overwritten after a barrier.
__device__ __forceinline__ float NormFactor(const float* x, int64_t cols, float eps, float* shared) {
  NormLanes(x, static_cast<int>(cols), shared);
  __syncthreads();
  return FoldNorm(shared, static_cast<int>(cols), eps);
}

}  // namespace stoch::cuda
