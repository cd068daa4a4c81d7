// SPDX-License-Identifier: Apache-2.0
// Attention of rows by blocks that are all on the GPU at once, one an SM: a row and the query heads of a KV head are the
// work of 1 to 16 of them, each of which owns whole lanes of position, t mod 256 in [stripe rank, stripe rank + stripe).
//
// What clusters exchange through each other's shared memory (fused.cu), these hand over through the L2 (device/exchange.cuh):
// the largest score, the 256 lane sums, the largest weight and the sums of p v. So any SMs can share a row, and a block
// has all shared memory of one. Scores of dimensions are added up in shared memory: a warp keeps the queries' streams of
// its dimensions in registers, so that a step of q k reads nothing but thermometers.
#include "kernels/cuda/attention/split/resident_products.cuh"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kSplitResidentThreads;
constexpr int kWarps = kResidentWarps;
constexpr int kHeads = kValueHeads;
constexpr int kPrefetched = 512;  // positions of a block that are asked for before the queries are there

template <int kHeadDim, int kN>
struct Shared {
  static constexpr int kMaxHeads = kN * kScoreHeads;
  uint4 thermometers[kCodes * kTableCopies];
  int32_t sums[kMaxHeads][kHeadDim + 1];  // of p v; heads of a dimension in different banks
  uint32_t of_warps[kWarps];
  float largest[kHeads];  // score, then weight
  float totals[kHeads];
  float q_scales[kHeads];
};

// Scores of local positions [begin, end) from their counts. Returns the larger of `most` and this thread's largest.
__device__ __forceinline__ float ScoresOf(const SplitArgs& args, const Stripes& b, const Scores& scores, int begin,
                                          int end, const int32_t* counts, const float* q_scales, const float* k_scales,
                                          const HeadWarps& of, float most) {
  const AttentionArgs& a = args.attention;
  if (of.head >= b.heads.count) return most;
  const float q_scale = q_scales[of.head];
  ForQuads(of, end - begin, [&](int i) {
    const float4 k_scale = LoadScales(a.kv, a.kv.k_scales, k_scales, b, begin + i);
    const float scales[4] = {k_scale.x, k_scale.y, k_scale.z, k_scale.w};
    const int4 words =
        *reinterpret_cast<const int4*>(counts + of.head * (args.resident_positions + kSplitResidentPad) + i);
    const bool odd = (of.head & 1) != 0;
    const int32_t pairs[2] = {odd ? words.y : words.x, odd ? words.w : words.z};
    const int t = b.Token(begin + i);
    float score[4];
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int32_t low = static_cast<int16_t>(pairs[x / 2] & 0xffff);
      const int32_t count = x % 2 == 0 ? low : (pairs[x / 2] - low) >> 16;
      score[x] = BipolarProduct(count, args.qk.gain, q_scale, scales[x]) * a.inv_sqrt;
      if (t + x < b.row.first || t + x >= b.row.length) score[x] = BitsToFloat(0xff800000u);
      most = fmaxf(most, score[x]);
    }
    *reinterpret_cast<float4*>(scores.at + of.head * scores.stride + begin + i) =
        make_float4(score[0], score[1], score[2], score[3]);
  });
  return most;
}

// The larger of a head's numbers over threads and, through `words`, [items][kHeads], over blocks, into `largest`. kFirst:
// what this block wrote before is visible to the others of the row after this, and theirs to it.
// Contains barriers of the block, the last thing in it.
template <bool kFirst>
__device__ __forceinline__ void ShareMaxima(const Stripes& b, const HeadWarps& of, float most, uint32_t* words,
                                            uint32_t (&of_warps)[kWarps], float (&largest)[kHeads]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  uint32_t word = __reduce_max_sync(0xffffffffu, OrderedWord(most));
  if (lane == 0) of_warps[warp] = word;
  __syncthreads();
  if (warp < b.heads.count) {  // of.head is warp
    word = lane < of.warps ? of_warps[warp + lane * (kWarps / of.warps)] : 0;
    word = __reduce_max_sync(0xffffffffu, word);
    if (b.ranks > 1) {
      if (lane == 0)
        kFirst ? PostLast(words + b.item * kHeads + warp, word) : Post(words + b.item * kHeads + warp, word);
      word = 0;
      if (lane < b.ranks) {
        const uint32_t* from = words + (b.item - b.rank + lane) * kHeads + warp;
        word = kFirst ? ReceiveLast(from) : Receive(from);
      }
      word = __reduce_max_sync(0xffffffffu, word);
    }
    if (lane == 0) largest[warp] = FromOrderedWord(word);
  }
  __syncthreads();
}

// Exponentials in the place of scores, the sums of the stripe's lanes to every block of the row, totals.
template <int kHeadDim, int kN>
__device__ __forceinline__ void Exponentials(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                             const HeadWarps& of, Shared<kHeadDim, kN>& s) {
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid & 31;
  const int warp = tid >> 5;
  if (of.head < b.heads.count) {
    const float largest = s.largest[of.head];
    ForQuads(of, b.count(), [&](int i) {
      auto& at = *reinterpret_cast<float4*>(scores.at + of.head * scores.stride + i);
      const float4 e = at;
      at = make_float4(Exp(e.x - largest), Exp(e.y - largest), Exp(e.z - largest), Exp(e.w - largest));
    });
  }
  __syncthreads();
  auto* sums = reinterpret_cast<uint32_t*>(args.scratch.lane_sums) + HeadIndex(args, b.row, b.heads.first) * kRowLanes;
#pragma unroll 1
  for (int i = tid; i < b.heads.count << b.shift; i += kThreads) {
    const int head = i >> b.shift;
    const int of_stripe = i & (b.stripe() - 1);
    const float* e = scores.at + head * scores.stride + of_stripe;
    const int units = b.row.units();
    float sum = 0.0f;
#pragma unroll 8
    for (int u = 0; u < units; ++u) sum = sum + e[u << b.shift];  // 0 where there is no position
    Post(sums + head * kRowLanes + (b.rank << b.shift) + of_stripe, SumWord(sum));
  }
  if (warp < b.heads.count) {
    float value[kRowLanes / 32];
    uint32_t words[kRowLanes / 32] = {};
    ReceiveAll(sums + warp * kRowLanes + lane, 32, words);
#pragma unroll
    for (int w = 0; w < kRowLanes / 32; ++w) value[w] = FromSumWord(words[w]);
#pragma unroll
    for (int x = kRowLanes / 64; x > 0; x /= 2) {
#pragma unroll
      for (int w = 0; w < x; ++w) value[w] = value[w] + value[w + x];
    }
    float total = value[0];
    __syncwarp();
#pragma unroll
    for (int x = 16; x > 0; x /= 2) total = total + __shfl_down_sync(0xffffffffu, total, x);
    if (lane == 0) {
      s.totals[warp] = total;
      if (!IsFinite(total)) args.attention.reporter.Report();
    }
  }
  __syncthreads();
}

// Weights in the place of exponentials. Returns this thread's largest.
__device__ __forceinline__ float WeighStripe(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                             const HeadWarps& of, const float* totals, const float* v_scales) {
  const KvView& kv = args.attention.kv;
  float most = 0.0f;
  if (of.head >= b.heads.count) return most;
  const float total = totals[of.head];
  ForQuads(of, b.count(), [&](int i) {
    const float4 v_scale = LoadScales(kv, kv.v_scales, v_scales, b, i);
    auto& at = *reinterpret_cast<float4*>(scores.at + of.head * scores.stride + i);
    const float e[4] = {at.x, at.y, at.z, at.w};
    const float scales[4] = {v_scale.x, v_scale.y, v_scale.z, v_scale.w};
    const int t = b.Token(i);
    float weight[4];
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const float p = e[x] / total;
      weight[x] = t + x < b.row.length ? p * scales[x] : 0.0f;
      most = fmaxf(most, weight[x]);
    }
    at = make_float4(weight[0], weight[1], weight[2], weight[3]);
  });
  return most;
}

// The levels of four weights, a byte each, in the place of the first.
__device__ __forceinline__ void QuantizeStripe(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                               const HeadWarps& of, const float* largest) {
  if (of.head >= b.heads.count) return;
  const float scale = BipolarScale(largest[of.head], args.av.q_max);
  ForQuads(of, b.count(), [&](int i) {
    float* at = scores.at + of.head * scores.stride + i;
    const float4 weight = *reinterpret_cast<const float4*>(at);
    *reinterpret_cast<uint32_t*>(at) = QuantizeWeights(args, b.row, b.Token(i), weight, scale);
  });
}

// The sums of all blocks of the row: every block makes its part of the output.
template <int kHeadDim, int kN>
__device__ __forceinline__ void WriteOutput(const SplitArgs& args, const Stripes& b, Shared<kHeadDim, kN>& s) {
  const AttentionArgs& a = args.attention;
  const int tid = static_cast<int>(threadIdx.x);
  const int all = b.heads.count * kHeadDim;
  const int slice = all / b.ranks;
  if (b.ranks > 1) {
    const int block = args.block_heads * kHeadDim;  // the last block of a KV head's heads may have fewer
    auto* words = reinterpret_cast<uint32_t*>(args.scratch.sums) + (b.item - b.rank) * block;
    for (int i = tid; i < all; i += kThreads) {
      if (i / slice != b.rank) Post(words + b.rank * block + i, CountWord(s.sums[i / kHeadDim][i % kHeadDim]));
    }
    for (int i = tid; i < all; i += kThreads) {
      const int from = i / slice;
      const int at = b.rank * slice + i % slice;
      if (from == b.rank) continue;
      atomicAdd(&s.sums[at / kHeadDim][at % kHeadDim], FromCountWord(Receive(words + from * block + at)));
    }
    __syncthreads();
  }
  for (int i = b.rank * slice + tid; i < (b.rank + 1) * slice; i += kThreads) {
    const int head = i / kHeadDim;
    const float scale = BipolarScale(s.largest[head], args.av.q_max);
    a.out[b.row.row * a.out_stride + static_cast<int64_t>(b.heads.first + head) * kHeadDim + i % kHeadDim] =
        (static_cast<float>(s.sums[head][i % kHeadDim]) * args.av.gain) * scale;
  }
}

// Asks for keys, values and scales of the row's first positions, which are memory's business and not the queries'.
__device__ __forceinline__ void Prefetch(const KvView& kv, const Stripes& b) {
  const int begin = b.row.first_unit() * kSplitUnit;
  const int end = min(b.row.length, begin + kPrefetched * b.ranks);
  const int all = b.ranks * kThreads;
  const int first = b.rank * kThreads + static_cast<int>(threadIdx.x);
  const int step = max(128 / kv.head_dim, 1);  // positions of a line
#pragma unroll 1
  for (int t = begin + first * step; t < end; t += all * step) {
    const int32_t page = __ldg(b.pages + (t >> kv.page_shift));
    const int slot = t & (kv.page_tokens - 1);
    const int64_t at = kv.Value(page, b.heads.kv_head, slot);
    PrefetchL2Line(reinterpret_cast<const uint8_t*>(kv.k_words) + at);
    PrefetchL2Line(reinterpret_cast<const uint8_t*>(kv.v_words) + at);
    if (t % 32 >= step) continue;
    PrefetchL2Line(kv.k_scales + kv.Scale(page, b.heads.kv_head, slot));
    PrefetchL2Line(kv.v_scales + kv.Scale(page, b.heads.kv_head, slot));
  }
}

// Streams of weights under the masks of the block's positions, where they fit.
__device__ __forceinline__ WeightStreams StageStreams(const SplitArgs& args, const Stripes& b, void* memory) {
  const int masks = min(args.av.masks, b.stripe());
  if (masks > args.resident_masks) return {nullptr, nullptr, 0};
  const int entries = masks * args.av.levels;
  auto* streams = static_cast<uint4*>(memory);
  auto* bytes = reinterpret_cast<uint8_t*>(streams + args.resident_masks * args.av.levels);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < entries; i += kThreads) {
    const uint4 stream = LoadStream(args.av, (b.rank << b.shift) + i / args.av.levels, i % args.av.levels);
    streams[i] = stream;
    bytes[i] = static_cast<uint8_t>(-Ones(stream));
  }
  return {streams, bytes, masks};
}

// Of what this block posts, words that are not there yet.
__device__ __forceinline__ void ClearWords(const SplitArgs& args, const Stripes& b) {
  const int tid = static_cast<int>(threadIdx.x);
  float* sums = args.scratch.lane_sums + HeadIndex(args, b.row, b.heads.first) * kRowLanes + (b.rank << b.shift);
  for (int i = tid; i < b.heads.count << b.shift; i += kThreads) {
    sums[(i >> b.shift) * kRowLanes + (i & (b.stripe() - 1))] = 0.0f;
  }
  const int head_dim = args.attention.kv.head_dim;
  int32_t* counts = args.scratch.sums + b.item * args.block_heads * head_dim;
  for (int i = tid; i < b.heads.count * head_dim; i += kThreads) counts[i] = 0;
}

// Scales of the block's keys and values, which arrive by themselves.
__device__ __forceinline__ void StageScales(const KvView& kv, const Stripes& b, float* to, int stride) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) * 4; i < b.count(); i += kThreads * 4) {
    CopyAsync16(SharedAddress(to + i), FourScales(kv, kv.k_scales, b, i));
    CopyAsync16(SharedAddress(to + stride + i), FourScales(kv, kv.v_scales, b, i));
  }
}

__device__ __forceinline__ void ClearCounts(const SplitArgs& args, int heads, int32_t* counts) {
  const int all = heads * (args.resident_positions + kSplitResidentPad) / 4;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < all; i += kThreads)
    reinterpret_cast<int4*>(counts)[i] = make_int4(0, 0, 0, 0);
}

template <bool kDirect, int kHeadDim, int kN>
__global__ void __launch_bounds__(kThreads, 1) SplitResidentKernel(const SplitArgs args) {
  extern __shared__ __align__(256) uint8_t shared_memory[];
  constexpr int kGroups = 2 / kN;  // of dimensions, that a warp takes
  auto& s = *reinterpret_cast<Shared<kHeadDim, kN>*>(shared_memory);
  StartNext();
  const int tid = static_cast<int>(threadIdx.x);
  Stripes b;
  if (!FindStripes(args, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), &b)) return;
  uint8_t* const table = shared_memory + sizeof(s);
  auto* const counts = reinterpret_cast<int32_t*>(table + args.resident_bytes);
  auto* const scales =
      reinterpret_cast<float*>(counts) + args.block_heads * (args.resident_positions + kSplitResidentPad);
  Scores scores{reinterpret_cast<float*>(counts), args.resident_positions + kSplitResidentPad};
  BlockScales in_shared{scales, scales + args.resident_positions};
  if (b.count() > args.resident_positions) {
    scores.stride = static_cast<int>(args.scratch.stride / b.ranks);
    scores.at = args.scratch.scores + HeadIndex(args, b.row, b.heads.first) * args.scratch.stride +
                static_cast<int64_t>(b.rank) * b.heads.count * scores.stride;
    in_shared = {};
  }
  const KvView& kv = args.attention.kv;
  const HeadWarps of = HeadWarpsOf(b.heads.count);
  Prefetch(kv, b);
  FillThermometers<kThreads>(args.qk, s.thermometers);
  const WeightStreams streams = StageStreams(args, b, table);
  for (int i = tid; i < kN * kScoreHeads * (kHeadDim + 1); i += kThreads) (&s.sums[0][0])[i] = 0;
  ClearCounts(args, b.heads.count, counts);
  WaitForPrevious();
  args.attention.reporter.Begin();
  float most = BitsToFloat(0xff800000u);
  {
    KeyTiles<kHeadDim, kGroups> keys;
    int end = min(b.count(), args.resident_positions);
    keys.Begin(kv, b, 0, end);
    if (in_shared.k != nullptr) StageScales(kv, b, scales, args.resident_positions);
    ClearWords(args, b);
    if (tid < b.heads.count) {
      s.q_scales[tid] = args.q.scales[static_cast<int64_t>(b.row.row) * args.attention.num_heads + b.heads.first + tid];
    }
    QueryRegisters<kGroups, kN> q;
    q.template Load<kHeadDim>(args, b, keys.Group());
    const uint32_t lane_table = LaneTable(s.thermometers);
    __syncthreads();
#pragma unroll 1
    for (int begin = 0;; begin = end, end = min(b.count(), end + args.resident_positions)) {
      CountKeys<kDirect>(args, b, begin, end, lane_table, q, keys, counts);
      WaitForAllCopies();
      __syncthreads();
      most = ScoresOf(args, b, scores, begin, end, counts, s.q_scales, in_shared.k, of, most);
      if (end == b.count()) break;
      keys.Begin(kv, b, end, min(b.count(), end + args.resident_positions));
      __syncthreads();  // counts are read
      ClearCounts(args, b.heads.count, counts);
      __syncthreads();
    }
  }
  ShareMaxima<true>(b, of, most, args.flags, s.of_warps, s.largest);
  ValueGroups<kHeadDim> values;
  values.Begin(kv, b);
  Exponentials(args, b, scores, of, s);
  // Every block of the row has sent its sums, so it has seen the maxima.
  if (b.ranks > 1 && tid < b.heads.count) args.flags[b.item * kHeads + tid] = 0;
  if (args.av.ranks != args.qk.ranks) FillThermometers<kThreads>(args.av, s.thermometers);
  uint32_t* const weight_flags = args.flags + gridDim.x * kHeads;
  most = WeighStripe(args, b, scores, of, s.totals, in_shared.v);
  ShareMaxima<false>(b, of, most, weight_flags, s.of_warps, s.largest);
  QuantizeStripe(args, b, scores, of, s.largest);
  __syncthreads();
  Values<kDirect>(args, b, scores, streams, LaneTable(s.thermometers), values, s.sums);
  __syncthreads();
  WriteOutput(args, b, s);
  if (b.ranks > 1 && tid < b.heads.count) weight_flags[b.item * kHeads + tid] = 0;  // as above
}

template <bool kDirect, int kHeadDim, int kN>
void Launch(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args) {
  static_assert(sizeof(Shared<kHeadDim, kN>) == kSplitTableBytes + SplitResidentBytes(kHeadDim, kN));
  const auto shared = static_cast<size_t>(plan.resident_shared_bytes);
  AllowShared(ctx, &SplitResidentKernel<kDirect, kHeadDim, kN>, shared);
  LaunchOverlapped(ctx, &SplitResidentKernel<kDirect, kHeadDim, kN>, dim3(static_cast<unsigned>(plan.resident_blocks)),
                   dim3(kThreads), shared, args);
}

}  // namespace

void LaunchSplitResident(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args) {
  DispatchInstance(args, [&]<bool kDirect, int kHeadDim, int kN>() { Launch<kDirect, kHeadDim, kN>(ctx, plan, args); });
}

}  // namespace stoch::cuda
