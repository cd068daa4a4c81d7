// SPDX-License-Identifier: Apache-2.0
// The choice of one row of a router (RouteCall) by one warp.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/math/elementary.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {

struct RouteArgs {
  const float* logits = nullptr;
  int32_t* chosen = nullptr;
  float* weights = nullptr;
  int experts = 0;
  int top_k = 0;
  bool normalize = false;
};

inline constexpr int kHeldLanes = kRowLanes / kWarp;  // probabilities of a thread where a warp holds a row

// Whether a warp holds the probabilities of a row, and a thread of it every choice.
inline bool FitsWarp(const RouteArgs& args) { return args.experts <= kRowLanes && args.top_k <= kWarp; }

#if defined(__CUDACC__)

// Choice `lane` of a row.
struct RouteChoice {
  int index = 0;
  float weight = 0;
};

// The choices of a row by one warp; p: its logits lane + 32 k, and the first one where there are no experts any more.
// Requires: FitsWarp, experts <= 32 kHeld.
template <int kHeld>
__device__ __forceinline__ RouteChoice ChooseRow(int experts, int top_k, bool normalize, float (&p)[kHeld]) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  float largest = p[0];
#pragma unroll
  for (int k = 1; k < kHeld; ++k) largest = fmaxf(largest, p[k]);
#pragma unroll
  for (int s = kWarp / 2; s > 0; s /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, s));
  float lanes[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (k * kWarp < experts) p[k] = Exp(p[k] - largest);
    lanes[k] = lane + k * kWarp < experts ? p[k] : 0.0f;
  }
  float sum = FoldLanes<kHeld>(lanes);  // lanes that are not held are 0, and no sum is -0
  // To both sides, as a + b is b + a: every thread ends with the total.
#pragma unroll
  for (int s = kWarp / 2; s > 0; s /= 2) sum = sum + __shfl_xor_sync(kAllLanes, sum, s);
#pragma unroll
  for (int k = 0; k < kHeld; ++k) p[k] = lane + k * kWarp < experts ? p[k] / sum : -2.0f;

  // The largest p first, the lower index of equals. Thread `rank` keeps its choice.
  RouteChoice own;
  float total = 0.0f;
  for (int rank = 0; rank < top_k; ++rank) {
    float best = p[0];
    int index = lane;
#pragma unroll
    for (int k = 1; k < kHeld; ++k) {
      const bool better = p[k] > best;
      best = better ? p[k] : best;
      index = better ? lane + k * kWarp : index;
    }
    // No p that is left is negative: ordered as integers.
    const auto bits = static_cast<int>(FloatToBits(best));
    const int most = __reduce_max_sync(kAllLanes, bits);
    index = __reduce_min_sync(kAllLanes, bits == most ? min(index, experts - 1) : experts - 1);
    const float weight = BitsToFloat(static_cast<uint32_t>(most));
    total = rank == 0 ? weight : total + weight;
    if (lane == rank) own = {index, weight};
#pragma unroll
    for (int k = 0; k < kHeld; ++k) p[k] = lane + k * kWarp == index ? -1.0f : p[k];
  }
  if (normalize && lane < top_k) own.weight = own.weight / total;
  return own;
}

// A row by one warp. Logits may have been written by other blocks of the kernel.
// Requires: FitsWarp.
__device__ __forceinline__ void RouteRow(const RouteArgs& args, int64_t row) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const float* logits = args.logits + row * args.experts;
  const float first = __ldcg(logits);
  float p[kHeldLanes];
#pragma unroll
  for (int k = 0; k < kHeldLanes; ++k) {
    const int e = lane + k * kWarp;
    p[k] = e < args.experts ? __ldcg(logits + e) : first;
  }
  const RouteChoice own = ChooseRow(args.experts, args.top_k, args.normalize, p);
  if (lane >= args.top_k) return;
  args.chosen[row * args.top_k + lane] = own.index;
  args.weights[row * args.top_k + lane] = own.weight;
}

#endif

}  // namespace stoch::cuda
