// SPDX-License-Identifier: Apache-2.0
// The products q k and p v of the split kernels without SC: fp32 arithmetic over keys and values in fp32 or fp16,
// summed in the order of kernels/math/reduce.h. q k: half a warp computes a dot product, and its threads are the 16
// lanes of the sum. p v: a block owns one lane, the positions t with one value of t mod kDotLanes, for its query heads
// of one KV head.
#include "kernels/cuda/attention/split/work.cuh"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/elementary.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {
namespace {

constexpr int kScoreThreads = 256;
constexpr int kScoreWarps = kScoreThreads / 32;
constexpr int kHalfWarps = 2 * kScoreWarps;  // half warps in a block, which take one position each at a time
constexpr int kValueThreads = 128;
constexpr int kMaxHeads = kSplitExactHeads;
// Positions of one lane whose probabilities are staged in shared memory at a time.
constexpr int kPositions = 32;

// Writes the largest score of a part for each of the block's heads to scratch.score_max, and zeroes the counter of
// finished lanes that SplitExactValuesKernel uses. Called by all threads; ends with a barrier.
__device__ __forceinline__ void FinishPart(const SplitArgs& args, const SplitRow& row, const SplitHeads& heads,
                                           int part, const float (&largest)[kMaxHeads],
                                           float (&of_warps)[kScoreWarps][kMaxHeads]) {
  const int tid = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int h = 0; h < kMaxHeads; ++h) {
    const float most = fmaxf(largest[h], __shfl_xor_sync(0xffffffffu, largest[h], 16));
    if ((tid & 31) == 0) of_warps[tid >> 5][h] = most;
  }
  __syncthreads();
  if (tid < heads.count) {
    float most = of_warps[0][tid];
    for (int w = 1; w < kScoreWarps; ++w) most = fmaxf(most, of_warps[w][tid]);
    args.scratch.score_max[HeadIndex(args, row, heads.first + tid) * args.scratch.parts + part] = most;
  }
  const int blocks = args.attention.kv.num_kv_heads * args.head_blocks;
  if (part == 0 && tid == 0) args.scratch.done[row.index * blocks + heads.block] = 0;
  __syncthreads();
}

// Writes the scores q k to scratch.scores and each part's maximum to scratch.score_max. Grid: args.score_blocks blocks
// in a grid-stride loop over items, each a part of a row's context for the query heads of one block; half a warp
// computes one position. kDims: dimensions per thread. T: float or __half, the type of the keys.
template <int kDims, typename T>
__global__ void __launch_bounds__(kScoreThreads) SplitExactScoresKernel(const SplitArgs args) {
  __shared__ float of_warps[kScoreWarps][kMaxHeads];
  const AttentionArgs& a = args.attention;
  const KvView& kv = a.kv;
  StartNext();
  const int tid = static_cast<int>(threadIdx.x);
  const int dot_lane = tid % kDotLanes;
  const int blocks = kv.num_kv_heads * args.head_blocks;
  const int part_units = PartUnits(args, args.score_blocks);
  WaitForPrevious();
  SplitRow row;
  const auto count_of = [&](const SplitRow& of) { return PartsOf(of, part_units) * blocks; };
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); FindItem(args, item, count_of, &row); item += args.score_blocks) {
    const int part = row.item / blocks;
    const SplitHeads heads = HeadsAt(args, row.item % blocks);
    const int32_t* pages = PagesOf(args, row);
    const int begin = (row.first_unit() + part * part_units) * kSplitUnit;
    const int end = min(begin + part_units * kSplitUnit, row.length);
    float q[kMaxHeads][kDims];
    float largest[kMaxHeads];
#pragma unroll
    for (int h = 0; h < kMaxHeads; ++h) {
      const float* from = a.q + row.row * a.q_stride + static_cast<int64_t>(heads.first + h) * kv.head_dim;
      largest[h] = BitsToFloat(0xff800000u);
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const int d = dot_lane + kDotLanes * i;
        q[h][i] = h < heads.count && d < kv.head_dim ? from[d] : 0.0f;
      }
    }
    // The loop's end is rounded up so that whole warps reach the shuffles: a unit is a multiple of kHalfWarps.
#pragma unroll 2
    for (int t = begin + tid / kDotLanes; t < (end + kHalfWarps - 1) / kHalfWarps * kHalfWarps; t += kHalfWarps) {
      const int at = min(t, row.length - 1);
      const T* k =
          kv.keys<T>() + kv.Value(__ldg(pages + (at >> kv.page_shift)), heads.kv_head, at & (kv.page_tokens - 1));
      float key[kDims];
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const int d = dot_lane + kDotLanes * i;
        key[i] = d < kv.head_dim ? ToFloat(__ldcg(k + d)) : 0.0f;
      }
#pragma unroll
      for (int h = 0; h < kMaxHeads; ++h) {
        if (h >= heads.count) break;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kDims; ++i) {
          if (dot_lane + kDotLanes * i < kv.head_dim) sum = Fma(q[h][i], key[i], sum);
        }
#pragma unroll
        for (int s = kDotLanes / 2; s > 0; s /= 2) sum = sum + __shfl_down_sync(0xffffffffu, sum, s, kDotLanes);
        if (dot_lane != 0 || t < row.first || t >= end) continue;
        const float score = PlusZero(sum) * a.inv_sqrt;
        largest[h] = fmaxf(largest[h], score);
        __stcg(args.scratch.scores + HeadIndex(args, row, heads.first + h) * args.scratch.stride + t, score);
      }
    }
    FinishPart(args, row, heads, part, largest, of_warps);
  }
}

// Computes p v and writes the outputs. Grid: args.value_blocks blocks in a grid-stride loop over items, each one lane
// of a row's sum for the query heads of one block, with a dimension per thread. The block that finishes the last lane
// folds the lanes and writes the output. T: float or __half, the type of the values.
template <typename T>
__global__ void __launch_bounds__(kValueThreads) SplitExactValuesKernel(const SplitArgs args) {
  __shared__ float p[kMaxHeads][kPositions];
  __shared__ int is_last;
  const AttentionArgs& a = args.attention;
  const KvView& kv = a.kv;
  StartNext();
  const int tid = static_cast<int>(threadIdx.x);
  const int blocks = kv.num_kv_heads * args.head_blocks;
  WaitForPrevious();
  SplitRow row;
  const auto count_of = [&](const SplitRow&) { return kDotLanes * blocks; };
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); FindItem(args, item, count_of, &row); item += args.value_blocks) {
    const SplitHeads heads = HeadsAt(args, row.item / kDotLanes);
    const int own = row.item % kDotLanes;
    const int32_t* pages = PagesOf(args, row);
    float* lanes = args.scratch.dot_lanes + HeadIndex(args, row, heads.first) * kDotLanes * kv.head_dim;
    const float* weights = args.scratch.scores + HeadIndex(args, row, heads.first) * args.scratch.stride;
    for (int dim = tid; dim < (kv.head_dim + kValueThreads - 1) / kValueThreads * kValueThreads; dim += kValueThreads) {
      float acc[kMaxHeads] = {};
#pragma unroll 1
      for (int base = row.first / kDotLanes * kDotLanes + own; base < row.length; base += kPositions * kDotLanes) {
        __syncthreads();  // the probabilities of the previous round have been used
        for (int i = tid; i < kMaxHeads * kPositions; i += kValueThreads) {
          const int t = base + i % kPositions * kDotLanes;
          const int h = i / kPositions;
          p[h][i % kPositions] = h < heads.count && t >= row.first && t < row.length
                                     ? __ldcg(weights + h * args.scratch.stride + t)
                                     : 0.0f;
        }
        __syncthreads();
        const int count = min(kPositions, (row.length - base + kDotLanes - 1) / kDotLanes);
#pragma unroll 8
        for (int i = 0; i < count; ++i) {
          const int t = base + i * kDotLanes;
          const int64_t at = kv.Value(__ldg(pages + (t >> kv.page_shift)), heads.kv_head, t & (kv.page_tokens - 1));
          const float v = dim < kv.head_dim ? ToFloat(__ldcg(kv.values<T>() + at + dim)) : 0.0f;
          if (t < row.first) continue;
#pragma unroll
          for (int h = 0; h < kMaxHeads; ++h) acc[h] = Fma(p[h][i], v, acc[h]);
        }
      }
#pragma unroll
      for (int h = 0; h < kMaxHeads; ++h) {
        if (h < heads.count && dim < kv.head_dim) __stcg(lanes + (h * kDotLanes + own) * kv.head_dim + dim, acc[h]);
      }
    }
    __threadfence();
    __syncthreads();
    if (tid == 0) is_last = atomicAdd(args.scratch.done + row.index * blocks + heads.block, 1) == kDotLanes - 1 ? 1 : 0;
    __syncthreads();
    if (is_last == 0) continue;
    __threadfence();
    for (int i = tid; i < heads.count * kv.head_dim; i += kValueThreads) {
      const int h = i / kv.head_dim;
      float column[kDotLanes];
#pragma unroll
      for (int j = 0; j < kDotLanes; ++j) {
        column[j] = __ldcg(lanes + (h * kDotLanes + j) * kv.head_dim + i % kv.head_dim);
      }
      a.out[row.row * a.out_stride + static_cast<int64_t>(heads.first) * kv.head_dim + i] =
          FoldLanes<kDotLanes>(column);
    }
  }
}

template <int kDims>
void LaunchScores(DeviceContext& ctx, const SplitArgs& args) {
  const auto kernel = args.attention.kv.k_half == nullptr ? &SplitExactScoresKernel<kDims, float>
                                                          : &SplitExactScoresKernel<kDims, __half>;
  LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(args.score_blocks)), dim3(kScoreThreads), 0, args);
}

}  // namespace

void LaunchSplitExactScores(DeviceContext& ctx, const SplitArgs& args) {
  const int head_dim = args.attention.kv.head_dim;
  if (head_dim <= 64) return LaunchScores<4>(ctx, args);
  if (head_dim <= 128) return LaunchScores<8>(ctx, args);
  LaunchScores<16>(ctx, args);
}

void LaunchSplitExactValues(DeviceContext& ctx, const SplitArgs& args) {
  const auto kernel =
      args.attention.kv.k_half == nullptr ? &SplitExactValuesKernel<float> : &SplitExactValuesKernel<__half>;
  LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(args.value_blocks)), dim3(kValueThreads), 0, args);
}

}  // namespace stoch::cuda
