// SPDX-License-Identifier: Apache-2.0
// Softmax over a row's router logits, and choice of the top_k experts (RouteCall): by a warp, or for few experts by a
// block. Included by router.cu alone.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/math/elementary.h"
#include "kernels/math/reduce.h"
#include "kernels/plan/router.h"

namespace stoch::cuda {

// A RouteCall in the form that kernels take.
struct RouteArgs {
  // logits: [rows][experts]. chosen, weights: outputs, [rows][top_k].
  const float* logits = nullptr;
  int32_t* chosen = nullptr;
  float* weights = nullptr;
  int experts = 0;
  int top_k = 0;
  // Whether to divide a row's weights by their sum.
  bool normalize = false;
  RowPost post;  // if set, the one row's choice is posted as [top_k] words, expert + 1 each
};

// ---- softmax and choice of one row by a warp ----

inline constexpr int kHeldLanes = kRowLanes / kWarp;  // experts that each lane holds when a warp holds a row
static_assert(kWarpRouterExperts == kRowLanes && kWarpRouterChoices == kWarp);

// Softmax and choice of one row, called by one warp. On entry p[k] is the logit of expert lane + 32 * k; values beyond
// args.experts are ignored. Writes args.chosen and args.weights. Requires: at most kWarpRouterExperts experts and
// kWarpRouterChoices choices.
__device__ __forceinline__ void RouteRow(const RouteArgs& args, int64_t row, float (&p)[kHeldLanes]) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const float first = __shfl_sync(kAllLanes, p[0], 0);
#pragma unroll
  for (int k = 0; k < kHeldLanes; ++k) p[k] = lane + k * kWarp < args.experts ? p[k] : first;
  float largest = p[0];
#pragma unroll
  for (int k = 1; k < kHeldLanes; ++k) largest = fmaxf(largest, p[k]);
#pragma unroll
  for (int s = kWarp / 2; s > 0; s /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, s));
  float lanes[kHeldLanes];
#pragma unroll
  for (int k = 0; k < kHeldLanes; ++k) {
    if (k * kWarp < args.experts) p[k] = Exp(p[k] - largest);
    lanes[k] = lane + k * kWarp < args.experts ? p[k] : 0.0f;
  }
  float sum = FoldLanes<kHeldLanes>(lanes);
  // Both lanes of a shuffle add the same two numbers and a + b equals b + a, so every thread ends with the total.
#pragma unroll
  for (int s = kWarp / 2; s > 0; s /= 2) sum = sum + __shfl_xor_sync(kAllLanes, sum, s);
#pragma unroll
  for (int k = 0; k < kHeldLanes; ++k) p[k] = lane + k * kWarp < args.experts ? p[k] / sum : -2.0f;

  // Choose the largest p, then the next; of equal ones the lower index first. Lane `rank` keeps choice number `rank`.
  int own_index = 0;
  float own_weight = 0.0f;
  float total = 0.0f;
  for (int rank = 0; rank < args.top_k; ++rank) {
    float best = p[0];
    int index = lane;
#pragma unroll
    for (int k = 1; k < kHeldLanes; ++k) {
      const bool better = p[k] > best;
      best = better ? p[k] : best;
      index = better ? lane + k * kWarp : index;
    }
    // The largest remaining p is not negative, so its bits compare like an integer.
    const auto bits = static_cast<int>(FloatToBits(best));
    const int most = __reduce_max_sync(kAllLanes, bits);
    index = __reduce_min_sync(kAllLanes, bits == most ? min(index, args.experts - 1) : args.experts - 1);
    const float weight = BitsToFloat(static_cast<uint32_t>(most));
    total = rank == 0 ? weight : total + weight;
    if (lane == rank) {
      own_index = index;
      own_weight = weight;
    }
#pragma unroll
    for (int k = 0; k < kHeldLanes; ++k) p[k] = lane + k * kWarp == index ? -1.0f : p[k];
  }
  if (lane >= args.top_k) return;
  args.chosen[row * args.top_k + lane] = own_index;
  args.weights[row * args.top_k + lane] = args.normalize ? own_weight / total : own_weight;
}

// Softmax and choice of one row with any number of experts and choices, called by one warp. The probabilities do not
// fit in registers, so they are recomputed for every choice.
__device__ __forceinline__ void RouteLongRow(const RouteArgs& args, int64_t row) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const float* logits = args.logits + row * args.experts;
  int32_t* chosen = args.chosen + row * args.top_k;
  float* weights = args.weights + row * args.top_k;
  float largest = logits[0];
  for (int e = lane; e < args.experts; e += kWarp) largest = fmaxf(largest, logits[e]);
#pragma unroll
  for (int s = kWarp / 2; s > 0; s /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, s));
  float lanes[kHeldLanes] = {};
#pragma unroll
  for (int k = 0; k < kHeldLanes; ++k) {
    for (int e = lane + k * kWarp; e < args.experts; e += kRowLanes) lanes[k] = lanes[k] + Exp(logits[e] - largest);
  }
  float sum = FoldLanes<kHeldLanes>(lanes);
#pragma unroll
  for (int s = kWarp / 2; s > 0; s /= 2) sum = sum + __shfl_xor_sync(kAllLanes, sum, s);

  // Choose the largest p, then the next; of equal ones the lower index first. Candidates are the experts after the last
  // choice in this order.
  float last = BitsToFloat(0x7f800000u);
  int last_index = -1;
  float total = 0.0f;
  for (int rank = 0; rank < args.top_k; ++rank) {
    float best = -1.0f;
    int index = args.experts - 1;
    for (int e = lane; e < args.experts; e += kWarp) {
      const float p = Exp(logits[e] - largest) / sum;
      const bool is_left = p < last || (p == last && e > last_index);
      index = is_left && p > best ? e : index;
      best = is_left && p > best ? p : best;
    }
    const auto bits = static_cast<int>(FloatToBits(best));
    const int most = __reduce_max_sync(kAllLanes, bits);
    last_index = __reduce_min_sync(kAllLanes, bits == most ? index : args.experts - 1);
    last = BitsToFloat(static_cast<uint32_t>(most));
    total = rank == 0 ? last : total + last;
    if (lane != 0) continue;
    chosen[rank] = last_index;
    weights[rank] = last;
  }
  __syncwarp();
  if (!args.normalize) return;
  for (int rank = lane; rank < args.top_k; rank += kWarp) weights[rank] = weights[rank] / total;
}

// ---- softmax and choice of one row by a block, for few experts ----

// A block chooses for one row in fewer dependent instructions than a single warp, which waits for each one.
inline constexpr int kBlockThreads = 512;
inline constexpr int kExpertThreads = 4;  // threads that find the rank of one expert (how many experts go before it)
inline constexpr int kChoiceExperts = kBlockThreads / kExpertThreads;
inline constexpr int kChoiceSlots = 16;  // largest top_k
// Shared memory of the choice by a block.
struct BlockChoice {
  alignas(16) int keys[kChoiceExperts];  // bits of p, which compare as integers like p: none is negative
  // [experts]: Exp(logit - largest logit).
  float e[kChoiceExperts];
  float p[kChoiceSlots];         // probability of the chosen experts, by rank
  int expert[kChoiceSlots + 1];  // expert of each rank, and of rank top_k; -1: no expert has that rank
};
static_assert(kBlockRouterExperts == kChoiceExperts && kBlockRouterChoices == kChoiceSlots);

inline constexpr int kHeldExperts = kChoiceExperts / kWarp;  // experts per lane when every warp holds all of them

// Receives the logits in `words` and writes their exponentials to choice.e, one expert per thread. Called by the first
// kChoiceExperts threads.
__device__ __forceinline__ void ShareExponentials(const RouteArgs& args, const uint32_t* words, BlockChoice& choice) {
  const int own = static_cast<int>(threadIdx.x);
  const int lane = own % kWarp;
  if (own <= kChoiceSlots) choice.expert[own] = -1;
  uint32_t got[kHeldExperts];  // every warp receives all logits, so one barrier suffices afterwards
#pragma unroll
  for (int k = 0; k < kHeldExperts; ++k)
    got[k] = lane + k * kWarp < args.experts ? 0 : SumWord(BitsToFloat(0xff800000u));
  ReceiveAll(words + lane, kWarp, got);
  __syncwarp();
  uint32_t most = 0;
  float mine = 0.0f;
#pragma unroll
  for (int k = 0; k < kHeldExperts; ++k) {
    const float logit = FromSumWord(got[k]);
    most = max(most, OrderedWord(logit));
    mine = k == own / kWarp ? logit : mine;
  }
  const float largest = FromOrderedWord(__reduce_max_sync(kAllLanes, most));
  choice.e[own] = own < args.experts ? Exp(mine - largest) : 0.0f;
}

// Writes the bits of the probabilities to choice.keys and zeroes `words`. Called by the first kChoiceExperts threads,
// after a block barrier that follows ShareExponentials.
__device__ __forceinline__ void ShareProbabilities(const RouteArgs& args, uint32_t* words, BlockChoice& choice) {
  const int own = static_cast<int>(threadIdx.x);
  if (own < args.experts) words[own] = 0;
  float lanes[kHeldExperts];
#pragma unroll
  for (int k = 0; k < kHeldExperts; ++k) lanes[k] = choice.e[own % kWarp + k * kWarp];
  float sum = FoldLanes<kHeldExperts>(lanes);  // the remaining lanes of kRowLanes would add +0
#pragma unroll
  for (int s = kWarp / 2; s > 0; s /= 2) sum = sum + __shfl_xor_sync(kAllLanes, sum, s);
  // Threads without an expert get a key below every probability, even NaN.
  choice.keys[own] = own < args.experts ? static_cast<int>(FloatToBits(choice.e[own] / sum)) : INT32_MIN;
}

// Finds the rank of every expert: the number of experts with a larger p or, if kExact, with an equal p and a lower
// index. Without kExact, experts of equal p get the same rank, one of them is stored, and the ranks after it stay empty
// (-1). Called by all kBlockThreads threads, kExpertThreads per expert.
template <bool kExact>
__device__ __forceinline__ void RankExperts(int top_k, BlockChoice& choice) {
  constexpr int kLoads = kChoiceExperts / (4 * kExpertThreads);
  const int expert = static_cast<int>(threadIdx.x) / kExpertThreads;
  const int part = static_cast<int>(threadIdx.x) % kExpertThreads;
  const int key = choice.keys[expert];
  int rank = 0;
#pragma unroll(kExact ? 1 : kLoads)
  for (int i = 0; i < kLoads; ++i) {
    const int first = (i * kExpertThreads + part) * 4;
    const int4 four = *reinterpret_cast<const int4*>(choice.keys + first);
    const int keys[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      rank += static_cast<int>(keys[c] > key);
      if (kExact) rank += static_cast<int>(keys[c] == key) & static_cast<int>(first + c < expert);
    }
  }
#pragma unroll
  for (int s = kExpertThreads / 2; s > 0; s /= 2) rank += __shfl_xor_sync(kAllLanes, rank, s);
  if (part != 0 || rank > top_k) return;
  atomicExch(choice.expert + rank, expert);
  // All experts that share the rank store the same value.
  if (rank < top_k) choice.p[rank] = BitsToFloat(static_cast<uint32_t>(key));
}

// Softmax and choice of one row. Called by all threads of a block of kBlockThreads. words: the posted logits (SumWord),
// zeroed at the end. Requires: at most kChoiceExperts experts and kChoiceSlots choices. Bits: as RouteCall says.
__device__ __forceinline__ void RouteByBlock(const RouteArgs& args, uint32_t* words, BlockChoice& choice) {
  const int j = static_cast<int>(threadIdx.x);
  if (j < kChoiceExperts) ShareExponentials(args, words, choice);
  __syncthreads();
  if (j < kChoiceExperts) ShareProbabilities(args, words, choice);
  __syncthreads();
  RankExperts<false>(args.top_k, choice);
  __syncthreads();
  // Experts of equal p got the same rank, and as many ranks after it stayed empty. If a rank up to top_k is empty, find
  // all ranks again, exactly.
  const int lane = j % kWarp;
  const bool is_hole = lane <= args.top_k && lane < args.experts && choice.expert[lane] < 0;
  if (__any_sync(kAllLanes, is_hole)) {
    __syncthreads();
    RankExperts<true>(args.top_k, choice);
    __syncthreads();
  }
  if (j >= args.top_k) return;
  float total = choice.p[0];
  for (int k = 1; k < args.top_k; ++k) total = total + choice.p[k];
  if (args.post.words != nullptr) Post(args.post.words + j, static_cast<uint32_t>(choice.expert[j]) + 1);
  args.chosen[j] = choice.expert[j];
  args.weights[j] = args.normalize ? choice.p[j] / total : choice.p[j];
}

}  // namespace stoch::cuda
