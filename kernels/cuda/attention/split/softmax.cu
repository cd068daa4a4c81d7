// SPDX-License-Identifier: Apache-2.0
// Softmax of the split kernels: replaces scores by weights, the numbers that p v multiplies.
//
// For a row of at most kSplitSoloUnits units, one block computes the maximum, the sum of exponentials and the weights
// of one query head. For a longer row, kLaneBlocks blocks divide the lanes of the sum (kernels/math/reduce.h) among
// them, and a second kernel computes the weights.
#include "kernels/cuda/attention/split/work.cuh"
#include "kernels/cuda/device/block_reduce.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/elementary.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;
constexpr int kWarps = kBlockWarps;
constexpr int kLaneBlocks = kRowLanes / 32;  // blocks that share the sum of a long row and head, 32 lanes each
constexpr int kRounds = 64;  // rounds of kRowLanes positions whose exponentials are kept in shared memory at a time
static_assert(kSplitUnit == kRowLanes);

// One row and query head: its index and the addresses of its data.
struct Head {
  float* scores;
  const float* v_scales;  // scales of the layer's values: [page][kv_head][position in the page]
  const int32_t* pages;
  int64_t index;
  int kv_head;
};

__device__ __forceinline__ Head HeadOf(const SplitArgs& args, const SplitRow& row, int head) {
  Head at;
  at.index = HeadIndex(args, row, head);
  at.scores = args.scratch.scores + at.index * args.scratch.stride;
  at.v_scales = args.attention.kv.v_scales;
  at.pages = PagesOf(args, row);
  at.kv_head = head / args.attention.group;
  return at;
}

// Returns the weight of position t, whose exponential is e: p = e / sum times the scale of the value, or p alone if
// kExact.
template <bool kExact>
__device__ __forceinline__ float WeightOf(const SplitArgs& args, const Head& head, int t, float e, float sum) {
  const float p = e / sum;
  if constexpr (kExact) return p;
  const KvView& kv = args.attention.kv;
  const int32_t page = __ldg(head.pages + (t >> kv.page_shift));
  return p * __ldcg(head.v_scales + kv.Scale(page, head.kv_head, t & (kv.page_tokens - 1)));
}

// Returns the largest of numbers[0, count), -inf if count is 0, in every thread of the block. shared: [kBlockWarps]
// scratch.
__device__ __forceinline__ float LargestOf(const float* numbers, int count, float* shared) {
  float largest = BitsToFloat(0xff800000u);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) largest = fmaxf(largest, __ldcg(numbers + i));
  return BlockMax(largest, shared);
}

// Computes the softmax of a row and head in one block: replaces scores by weights, and unless kExact writes the largest
// weight to scratch.weight_max. Thread j adds lane j of the sum. shared: [kRowLanes] scratch.
template <bool kExact>
__device__ void OneBlock(const SplitArgs& args, const SplitRow& row, const Head& head, float largest, float* shared) {
  const int first = row.first_unit() * kSplitUnit + static_cast<int>(threadIdx.x);
  float sum = 0.0f;
#pragma unroll 4
  for (int t = first; t < row.length; t += kThreads) {
    if (t < row.first) continue;
    const float e = Exp(__ldcg(head.scores + t) - largest);
    __stcg(head.scores + t, e);
    sum = sum + e;
  }
  sum = BlockFoldLanes(sum, shared);
  if (threadIdx.x == 0 && !IsFinite(sum)) args.attention.reporter.Report();
  float most = 0.0f;
#pragma unroll 4
  for (int t = first; t < row.length; t += kThreads) {
    if (t < row.first) continue;
    const float weight = WeightOf<kExact>(args, head, t, __ldcg(head.scores + t), sum);
    __stcg(head.scores + t, weight);
    most = fmaxf(most, weight);
  }
  if constexpr (!kExact) {
    most = BlockMax(most, shared);
    if (threadIdx.x == 0) args.scratch.weight_max[head.index * args.scratch.parts] = most;
  }
}

// Computes 32 lanes of the sum of a long row: all warps of the block replace scores by exponentials, and thread l of
// warp 0 adds those of lane l in the order of positions. Writes the sums to scratch.lane_sums.
__device__ void SumLanes(const SplitArgs& args, const SplitRow& row, const Head& head, int lane_block, float largest,
                         float (&tile)[kRounds][32]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int end = row.first_unit() + row.units();
  float sum = 0.0f;
#pragma unroll 1
  for (int base = row.first_unit(); base < end; base += kRounds) {
    float score[kRounds / kWarps];
#pragma unroll
    for (int i = 0; i < kRounds / kWarps; ++i) {
      const int t = (base + warp + i * kWarps) * kRowLanes + lane_block * 32 + lane;
      score[i] = t >= row.first && t < row.length ? __ldcg(head.scores + t) : BitsToFloat(0xff800000u);
    }
    __syncthreads();  // the previous tile has been added
#pragma unroll
    for (int i = 0; i < kRounds / kWarps; ++i) {
      const int t = (base + warp + i * kWarps) * kRowLanes + lane_block * 32 + lane;
      const float e = Exp(score[i] - largest);
      tile[warp + i * kWarps][lane] = e;
      if (t >= row.first && t < row.length) __stcg(head.scores + t, e);
    }
    __syncthreads();
    if (warp == 0) {
      const int rounds = min(kRounds, end - base);
#pragma unroll 8
      for (int i = 0; i < rounds; ++i) sum = sum + tile[i][lane];  // a missing position has an exponential of 0
    }
  }
  if (warp == 0) args.scratch.lane_sums[head.index * kRowLanes + lane_block * 32 + lane] = sum;
}

// Replaces the scores of a long row by exponentials and sums them by lane, or computes the whole softmax of a short
// row. Grid: kSplitSoftmaxBlocks blocks per SM in a grid-stride loop over items: a short row and query head (OneBlock),
// or 32 lanes of a long row and query head (SumLanes).
template <bool kExact>
__global__ void __launch_bounds__(kThreads) SplitSumsKernel(const SplitArgs args) {
  __shared__ float tile[kRounds][32];
  __shared__ float reduce[kRowLanes];
  StartNext();
  const int part_units = PartUnits(args, args.score_blocks);
  WaitForPrevious();
  const int num_heads = args.attention.num_heads;
  SplitRow row;
  const auto count_of = [&](const SplitRow& of) { return num_heads * (IsOneBlock(args, of) ? 1 : kLaneBlocks); };
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); FindItem(args, item, count_of, &row);
       item += static_cast<int>(gridDim.x)) {
    const Head head = HeadOf(args, row, row.item % num_heads);
    const float largest =
        LargestOf(args.scratch.score_max + head.index * args.scratch.parts, PartsOf(row, part_units), reduce);
    if (IsOneBlock(args, row)) {
      OneBlock<kExact>(args, row, head, largest, reduce);
    } else {
      SumLanes(args, row, head, row.item / num_heads, largest, tile);
    }
  }
}

// Replaces exponentials by weights in the long rows whose lane sums SumLanes wrote. Grid: kSplitSoftmaxBlocks blocks
// per SM in a grid-stride loop over items, each kSplitWeightUnits units of a row and query head.
template <bool kExact>
__global__ void __launch_bounds__(kThreads) SplitWeightsKernel(const SplitArgs args) {
  __shared__ float reduce[kRowLanes];
  StartNext();
  const int tid = static_cast<int>(threadIdx.x);
  const int num_heads = args.attention.num_heads;
  WaitForPrevious();
  SplitRow row;
  const auto count_of = [&](const SplitRow& of) {
    return IsOneBlock(args, of) ? 0 : num_heads * WeightParts(args, of);
  };
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); FindItem(args, item, count_of, &row);
       item += static_cast<int>(gridDim.x)) {
    const Head head = HeadOf(args, row, row.item % num_heads);
    const int part = row.item / num_heads;
    const float sum = BlockFoldLanes(__ldcg(args.scratch.lane_sums + head.index * kRowLanes + tid), reduce);
    if (part == 0 && tid == 0 && !IsFinite(sum)) args.attention.reporter.Report();
    const int begin = (row.first_unit() + part * kSplitWeightUnits) * kSplitUnit + tid;
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < kSplitWeightUnits; ++i) {
      const int t = begin + i * kThreads;
      if (t < row.first || t >= row.length) continue;
      const float weight = WeightOf<kExact>(args, head, t, __ldcg(head.scores + t), sum);
      __stcg(head.scores + t, weight);
      most = fmaxf(most, weight);
    }
    if constexpr (!kExact) {
      most = BlockMax(most, reduce);
      if (tid == 0) args.scratch.weight_max[head.index * args.scratch.parts + part] = most;
    }
  }
}

template <bool kExact>
void Launch(DeviceContext& ctx, const SplitArgs& args) {
  const dim3 grid(static_cast<unsigned>(ctx.traits.sm_count * kSplitSoftmaxBlocks));
  LaunchOverlapped(ctx, &SplitSumsKernel<kExact>, grid, dim3(kThreads), 0, args);
  if (!args.is_one_block) LaunchOverlapped(ctx, &SplitWeightsKernel<kExact>, grid, dim3(kThreads), 0, args);
}

}  // namespace

void LaunchSplitSoftmax(DeviceContext& ctx, const SplitArgs& args, bool exact) {
  exact ? Launch<true>(ctx, args) : Launch<false>(ctx, args);
}

}  // namespace stoch::cuda
