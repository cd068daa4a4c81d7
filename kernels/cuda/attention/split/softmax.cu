// SPDX-License-Identifier: Apache-2.0
// The softmax between the two products of the split kernels: lanes of its sum over blocks, then its weights over parts.
//
// A long row's sum is kSplitLaneBlocks blocks' work, each of which owns whole lanes, and its weights are a kernel more.
// A shorter row is one block's, from the maximum to the weights.
#include "kernels/cuda/attention/split/work.cuh"
#include "kernels/cuda/device/block_reduce.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/elementary.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;
constexpr int kWarps = kBlockWarps;
constexpr int kLaneBlocks = kRowLanes / 32;  // of a long row and head
constexpr int kRounds = 64;                  // of kRowLanes positions, whose exponentials wait in shared memory
static_assert(kSplitUnit == kRowLanes);

// One row and query head.
struct Head {
  float* scores;
  const float* v_scales;  // of the layer
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

// The value to quantize: p s_v for codes, p alone without.
template <bool kExact>
__device__ __forceinline__ float WeightOf(const SplitArgs& args, const Head& head, int t, float e, float sum) {
  const float p = e / sum;
  if constexpr (kExact) return p;
  const KvView& kv = args.attention.kv;
  const int32_t page = __ldg(head.pages + (t >> kv.page_shift));
  return p * __ldcg(head.v_scales + kv.Scale(page, head.kv_head, t & (kv.page_tokens - 1)));
}

// The largest of `count` numbers, in every thread.
__device__ __forceinline__ float LargestOf(const float* numbers, int count, float* shared) {
  float largest = BitsToFloat(0xff800000u);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) largest = fmaxf(largest, __ldcg(numbers + i));
  return BlockMax(largest, shared);
}

// All of a row: thread j is lane j of the sum.
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

// 32 lanes of a long row: all warps make exponentials, one adds them in the order of positions.
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
    __syncthreads();  // the tile before was added
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
      for (int i = 0; i < rounds; ++i) sum = sum + tile[i][lane];  // 0 where there is no position
    }
  }
  if (warp == 0) args.scratch.lane_sums[head.index * kRowLanes + lane_block * 32 + lane] = sum;
}

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

// Weights of the rows whose sums were many blocks' work.
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
