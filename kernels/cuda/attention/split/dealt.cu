// SPDX-License-Identifier: Apache-2.0
// Kernels of dealt rows (../dealt.h): listing the queries, softmax over all devices, output, and plain products for
// shapes that scores.cu and values.cu do not take. All are launched without PDL, because they wait for events of other
// devices and read what these devices wrote.
#include <algorithm>

#include "kernels/cuda/attention/split/dealt.cuh"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/block_reduce.cuh"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;
constexpr int kWarps = kThreads / 32;
constexpr int kRounds = 64;  // DealtLanesKernel: exponentials per lane that it holds in shared memory at a time
constexpr int kWeightPositions = 2048;  // local positions that a block of DealtWeightsKernel takes
constexpr int kAdmitPositions = 1024;   // local positions that a block of DealtAdmitKernel takes
constexpr int kProductPositions = kThreads;

// Fills `queries` with the rows of the pass, a thread per row.
__global__ void __launch_bounds__(kThreads)
    ListQueriesKernel(const PassView pass, const StripeView stripe, const int32_t rows, DealtQuery* queries) {
  const auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= rows) return;
  const PassRow row = pass.rows[i];
  DealtQuery query{row.sequence, row.position, stripe.OwnerOf(row.position), 0};
  StripeView owner = stripe;
  owner.begin = query.owner << stripe.width_shift;
  for (int32_t s = 0; s < row.sequence; ++s) {
    const PassSequence& before = pass.sequences[s];
    query.owner_row += owner.Below(before.length) - owner.Below(before.start_position);
  }
  query.owner_row += owner.Below(row.position) - owner.Below(pass.sequences[row.sequence].start_position);
  queries[i] = query;
}

// A block's row (blockIdx.z) and query head (blockIdx.y), their HeadIndex, page table and scores in scratch.
struct RowHead {
  SplitRow row;
  int head = 0;
  int kv_head = 0;
  int64_t index = 0;
  const int32_t* pages = nullptr;
  float* scores = nullptr;
};
__device__ __forceinline__ RowHead RowHeadOf(const DealtArgs& args) {
  RowHead at;
  at.row = RowAt(args, static_cast<int>(blockIdx.z));
  at.head = static_cast<int>(blockIdx.y);
  at.kv_head = at.head / args.attention.group;
  at.index = HeadIndex(args, at.row, at.head);
  at.pages = PagesOf(args, at.row);
  at.scores = args.scratch.scores + at.index * args.scratch.stride;
  return at;
}

// Computes q k by look-ups in the count table, writes the scores, and raises this device's score_max to the largest.
// Grid: x is kProductPositions local positions (a thread each), y a query head, z a row.
__global__ void __launch_bounds__(kThreads) DealtScoresKernel(const DealtArgs args) {
  __shared__ uint32_t codes[64];
  __shared__ float reduce[kWarps];
  const RowHead at = RowHeadOf(args);
  const int begin = static_cast<int>(blockIdx.x) * kProductPositions;
  if (begin >= at.row.length || begin + kProductPositions <= at.row.first) return;
  const DealtKv kv = KvOf(args);
  const int words = kv.head_dim / 4;
  const int tid = static_cast<int>(threadIdx.x);
  const DealtQueryCodes from = CodesOf(args, at.row, at.head);
  if (tid < words) codes[tid] = LoadShared(from.words + tid);
  __syncthreads();
  const int t = begin + tid;
  float score = BitsToFloat(0xff800000u);
  if (t >= at.row.first && t < at.row.length) {
    const KvPlace place = PlaceOf(kv, at.pages, t);
    int32_t sum = 0;
    for (int w = 0; w < words; ++w) {
      const uint32_t k = kv.k_words[kv.KWord(place.page, at.kv_head, w, place.slot)];
      const uint32_t q = codes[w];
      for (int j = 0; j < 4; ++j) {
        const uint32_t a = q >> 8 * j & 0xff;
        const uint32_t b = k >> 8 * j & 0xff;
        const int mask = (4 * w + j) & (args.qk.masks - 1);
        const int count = args.qk.counts16[(mask * args.qk.levels + (a & 0x7f)) * args.qk.levels + (b & 0x7f)];
        sum += ((a ^ b) & 0x80) != 0 ? -count : count;
      }
    }
    const float k_scale = kv.k_scales[kv.Scale(place.page, at.kv_head, place.slot)];
    score = BipolarProduct(sum, args.qk.gain, LoadShared(from.scales), k_scale) * args.attention.inv_sqrt;
    at.scores[t] = score;
  }
  const float most = BlockMax(score, reduce);
  if (tid == 0) atomicMax(args.shares[args.index].score_max + at.index, OrderedWord(most));
}

// Fills *admitted with the positions that dilated attention admits to a block's row and head. Called by all threads of
// the block; the caller puts a barrier after it.
__device__ __forceinline__ void FindAdmitted(const DealtArgs& args, const RowHead& at, AdmittedRow* admitted) {
  const int position = args.queries[at.row.index].position;
  const int window = args.attention.window;
  admitted->Find(args.pairs, at.head, position, window > 0 ? max(position + 1 - window, 0) : 0);
}

// Sets scores that dilated attention does not admit to -inf, and raises this device's score_max to the largest admitted
// score. Grid: x is kAdmitPositions local positions, y a query head, z a row.
__global__ void __launch_bounds__(kThreads) DealtAdmitKernel(const DealtArgs args) {
  __shared__ AdmittedRow admitted;
  __shared__ float reduce[kWarps];
  const RowHead at = RowHeadOf(args);
  const int begin = static_cast<int>(blockIdx.x) * kAdmitPositions;
  const int end = min(begin + kAdmitPositions, at.row.length);
  if (begin > 0 && (begin >= at.row.length || end <= at.row.first)) return;
  FindAdmitted(args, at, &admitted);
  __syncthreads();
  const int tid = static_cast<int>(threadIdx.x);
  float most = BitsToFloat(0xff800000u);
  for (int t = begin + tid; t < end; t += kThreads) {
    if (t < at.row.first) continue;
    if (admitted.Times(AbsoluteOf(args, t)) == 0) {
      __stcg(at.scores + t, BitsToFloat(0xff800000u));
    } else {
      most = fmaxf(most, __ldcg(at.scores + t));
    }
  }
  most = BlockMax(most, reduce);
  if (tid == 0) atomicMax(args.shares[args.index].score_max + at.index, OrderedWord(most));
}

// Replaces scores by exponentials and writes the lanes of their sum. Grid: x is 32 of this device's lanes, y a query
// head, z a row. All warps of a block compute exponentials, and warp 0 adds them in the order of positions. kDilated: a
// score of -inf was not admitted and gives 0; every other exponential is multiplied by the number of pairs that admit
// its position.
template <bool kDilated>
__global__ void __launch_bounds__(kThreads) DealtLanesKernel(const DealtArgs args) {
  __shared__ float tile[kRounds][32];
  __shared__ float shared_largest;
  __shared__ AdmittedRow admitted;
  const RowHead at = RowHeadOf(args);
  if constexpr (kDilated) FindAdmitted(args, at, &admitted);
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  if (warp == 0) {
    uint32_t word = lane < args.stripes ? LoadShared(args.shares[lane].score_max + at.index) : 0;
    word = __reduce_max_sync(0xffffffffu, word);
    // The word is not 0: the device that owns the row's own position wrote one, and with kDilated every device did.
    if (lane == 0) shared_largest = FromOrderedWord(word);
  }
  __syncthreads();
  const float largest = shared_largest;
  const int lanes = kRowLanes >> args.stripe.count_shift;
  const int own = static_cast<int>(blockIdx.x) * 32 + lane;
  const int end = (at.row.length + lanes - 1) / lanes;
  float sum = 0.0f;
#pragma unroll 1
  for (int base = at.row.first / lanes; base < end; base += kRounds) {
    float score[kRounds / kWarps];
#pragma unroll
    for (int i = 0; i < kRounds / kWarps; ++i) {
      const int t = (base + warp + i * kWarps) * lanes + own;
      score[i] = t >= at.row.first && t < at.row.length ? __ldcg(at.scores + t) : BitsToFloat(0xff800000u);
    }
    __syncthreads();  // the previous tile has been added
#pragma unroll
    for (int i = 0; i < kRounds / kWarps; ++i) {
      const int t = (base + warp + i * kWarps) * lanes + own;
      float e;
      if constexpr (kDilated) {
        const bool counts = score[i] != BitsToFloat(0xff800000u);
        e = counts ? static_cast<float>(admitted.Times(AbsoluteOf(args, t))) * Exp(score[i] - largest) : 0.0f;
      } else {
        e = Exp(score[i] - largest);
      }
      tile[warp + i * kWarps][lane] = e;
      if (t >= at.row.first && t < at.row.length) __stcg(at.scores + t, e);
    }
    __syncthreads();
    if (warp == 0) {
      const int rounds = min(kRounds, end - base);
#pragma unroll 8
      for (int i = 0; i < rounds; ++i) sum = sum + tile[i][lane];  // a missing position has an exponential of 0
    }
  }
  if (warp == 0) args.shares[args.index].lanes[at.index * lanes + own] = sum;
}

// Replaces exponentials by weights (probability times the value's scale), and raises this device's weight_max to the
// largest. Grid: x is kWeightPositions local positions, y a query head, z a row.
__global__ void __launch_bounds__(kThreads) DealtWeightsKernel(const DealtArgs args) {
  __shared__ float reduce[kRowLanes];
  const RowHead at = RowHeadOf(args);
  const int begin = static_cast<int>(blockIdx.x) * kWeightPositions;
  const int end = min(begin + kWeightPositions, at.row.length);
  if (begin > 0 && (begin >= at.row.length || end <= at.row.first)) return;
  const DealtKv kv = KvOf(args);
  const int tid = static_cast<int>(threadIdx.x);
  // Thread j loads lane j of the sum of exponentials from the device that owns this lane.
  StripeView owner = args.stripe;
  const int stripe = owner.OwnerOf(tid);
  owner.begin = stripe << owner.width_shift;
  const int lanes = kRowLanes >> owner.count_shift;
  const float sum = BlockFoldLanes(LoadShared(args.shares[stripe].lanes + at.index * lanes + owner.Below(tid)), reduce);
  if (begin == 0 && tid == 0 && !IsFinite(sum)) args.attention.reporter.Report();
  float most = 0.0f;
  for (int t = begin + tid; t < end; t += kThreads) {
    if (t < at.row.first) continue;
    const KvPlace place = PlaceOf(kv, at.pages, t);
    const float e = __ldcg(at.scores + t);
    const float scale = __ldcg(kv.v_scales + kv.Scale(place.page, at.kv_head, place.slot));
    const float weight = e != 0.0f ? (e / sum) * scale : 0.0f;  // 0 also if no position is admitted and the sum is 0
    __stcg(at.scores + t, weight);
    most = fmaxf(most, weight);
  }
  most = BlockMax(most, reduce);
  // Weights are not negative, so their bits are ordered as integers.
  if (tid == 0) atomicMax(args.shares[args.index].weight_max + at.index, FloatToBits(most));
}

// Computes p v by look-ups in the count table and adds the counts to the sums in this device's share. Grid: x is
// kProductPositions local positions, y a query head, z a row; thread d takes dimension d of the head.
__global__ void __launch_bounds__(kThreads) DealtValuesKernel(const DealtArgs args) {
  __shared__ uint8_t levels[kProductPositions];
  const RowHead at = RowHeadOf(args);
  const int begin = static_cast<int>(blockIdx.x) * kProductPositions;
  const int end = min(begin + kProductPositions, at.row.length);
  if (begin >= at.row.length || end <= at.row.first) return;
  const DealtKv kv = KvOf(args);
  const int tid = static_cast<int>(threadIdx.x);
  const float scale = BipolarScale(LargestWeight(args, at.index), args.av.q_max);
  const int own = begin + tid;
  const bool seen = own >= at.row.first && own < at.row.length;
  levels[tid] = seen ? static_cast<uint8_t>(BipolarLevel(__ldcg(at.scores + own), scale, args.av.q_max)) : uint8_t{0};
  __syncthreads();
  if (tid >= kv.head_dim) return;
  int32_t sum = 0;
  for (int t = begin; t < end; ++t) {
    const int level = levels[t - begin];
    if (level == 0) continue;
    const KvPlace place = PlaceOf(kv, at.pages, t);
    const uint32_t word = kv.v_words[kv.VWord(place.page, at.kv_head, place.slot >> 2, tid)];
    const uint32_t code = word >> 8 * (place.slot & 3) & 0xff;
    const int mask = AbsoluteOf(args, t) & (args.av.masks - 1);
    const int count = args.av.counts16[(mask * args.av.levels + level) * args.av.levels + (code & 0x7f)];
    sum += (code & 0x80) != 0 ? -count : count;
  }
  atomicAdd(args.shares[args.index].sums + at.index * kv.head_dim + tid, sum);
}

// Writes the output of the rows that this device owns, from the sums of all devices. Grid: x is kThreads columns (query
// head and dimension, a thread each), y a row of the launch.
__global__ void __launch_bounds__(kThreads) DealtOutputKernel(const DealtArgs args) {
  const AttentionArgs& a = args.attention;
  const auto row = static_cast<int>(blockIdx.y);
  const DealtQuery query = args.queries[row];
  const int column = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (query.owner != args.index || column >= a.num_heads * a.kv.head_dim) return;
  const int64_t index = static_cast<int64_t>(row) * a.num_heads + column / a.kv.head_dim;
  int32_t total = 0;
  for (int i = 0; i < args.stripes; ++i) {
    total += LoadShared(args.shares[i].sums + static_cast<int64_t>(row) * a.num_heads * a.kv.head_dim + column);
  }
  const float scale = BipolarScale(LargestWeight(args, index), args.av.q_max);
  a.out[query.owner_row * a.out_stride + column] = (static_cast<float>(total) * args.av.gain) * scale;
}

unsigned BlocksOf(int64_t count, int64_t each) {
  return static_cast<unsigned>(count > each ? (count + each - 1) / each : 1);
}
DealtArgs ArgsOf(const DealtAttention& attention) {
  const SplitPlan& split = attention.plan.split;
  DealtArgs args;
  args.attention = attention.attention;
  args.qk = attention.qk;
  args.av = attention.av;
  args.scratch.scores = attention.scores;
  args.scratch.stride = attention.stride;
  args.rows = attention.rows;
  args.block_heads = split.block_heads;
  args.head_blocks = split.head_blocks;
  args.score_blocks = split.score_blocks;
  args.value_blocks = split.value_blocks;
  args.pairs = attention.pairs;
  static_cast<DealtRowsView&>(args) = attention.dealt;
  return args;
}
dim3 GridOf(const DealtArgs& args, unsigned blocks) {
  return {blocks, static_cast<unsigned>(args.attention.num_heads), static_cast<unsigned>(args.rows)};
}

}  // namespace

void LaunchListQueries(DeviceContext& ctx, const PassView& pass, int64_t rows, const StripeView& stripe,
                       DealtQuery* queries) {
  ListQueriesKernel<<<BlocksOf(rows, kThreads), kThreads, 0, ctx.stream>>>(pass, stripe, static_cast<int32_t>(rows),
                                                                           queries);
  STOCH_CUDA_LAUNCH("ListQueriesKernel");
}

void LaunchDealtScores(DeviceContext& ctx, const DealtAttention& attention) {
  const DealtArgs args = ArgsOf(attention);
  if (attention.plan.route == AttentionRoute::kDealtSplit) {
    LaunchSplitScores(ctx, attention.plan.split, args);
  } else {
    DealtScoresKernel<<<GridOf(args, BlocksOf(attention.stride, kProductPositions)), kThreads, 0, ctx.stream>>>(args);
    STOCH_CUDA_LAUNCH("DealtScoresKernel");
  }
  if (args.pairs.count == 0) return;
  // The score kernels raised score_max over all positions from the first segment on. DealtAdmitKernel starts from 0
  // again and raises it over admitted positions alone.
  const size_t bytes =
      static_cast<size_t>(args.rows) * static_cast<size_t>(args.attention.num_heads) * sizeof(uint32_t);
  STOCH_CUDA(cudaMemsetAsync(args.shares[args.index].score_max, 0, bytes, ctx.stream));
  DealtAdmitKernel<<<GridOf(args, BlocksOf(attention.stride, kAdmitPositions)), kThreads, 0, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("DealtAdmitKernel");
}

void LaunchDealtLanes(DeviceContext& ctx, const DealtAttention& attention) {
  const DealtArgs args = ArgsOf(attention);
  const dim3 grid = GridOf(args, BlocksOf(kRowLanes / args.stripes, 32));
  const auto kernel = args.pairs.count > 0 ? &DealtLanesKernel<true> : &DealtLanesKernel<false>;
  kernel<<<grid, kThreads, 0, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("DealtLanesKernel");
}

void LaunchDealtWeights(DeviceContext& ctx, const DealtAttention& attention) {
  const DealtArgs args = ArgsOf(attention);
  DealtWeightsKernel<<<GridOf(args, BlocksOf(attention.stride, kWeightPositions)), kThreads, 0, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("DealtWeightsKernel");
}

void LaunchDealtValues(DeviceContext& ctx, const DealtAttention& attention) {
  const DealtArgs args = ArgsOf(attention);
  if (attention.plan.route == AttentionRoute::kDealtSplit) {
    return LaunchSplitValues(ctx, attention.plan.split, args);
  }
  DealtValuesKernel<<<GridOf(args, BlocksOf(attention.stride, kProductPositions)), kThreads, 0, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("DealtValuesKernel");
}

void LaunchDealtOutput(DeviceContext& ctx, const DealtAttention& attention) {
  const DealtArgs args = ArgsOf(attention);
  const dim3 grid(BlocksOf(int64_t{args.attention.num_heads} * args.attention.kv.head_dim, kThreads),
                  static_cast<unsigned>(args.rows));
  DealtOutputKernel<<<grid, kThreads, 0, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("DealtOutputKernel");
}

}  // namespace stoch::cuda
