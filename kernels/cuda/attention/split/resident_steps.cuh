// SPDX-License-Identifier: Apache-2.0
// What the kernels of resident blocks have in common behind their scores: maxima and sums that the blocks of a row hand to
// each other, the softmax in between, the output; and what they ask for in front of them.
#pragma once

#include "kernels/cuda/attention/split/resident_products.cuh"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {

inline constexpr int kResidentPrefetched = 512;  // positions of a block that are asked for before the queries are there

// Of a block's heads.
struct ResidentNumbers {
  uint32_t of_warps[kResidentWarps];
  float largest[kValueHeads];  // score, then weight
  float totals[kValueHeads];
  float q_scales[kValueHeads];
};

// Where those of a block are whose row is deeper than its shared memory.
__device__ __forceinline__ Scores ScratchScores(const SplitArgs& args, const Stripes& b) {
  const int stride = static_cast<int>(args.scratch.stride / b.ranks);
  return {args.scratch.scores + HeadIndex(args, b.row, b.heads.first) * args.scratch.stride +
              static_cast<int64_t>(b.rank) * b.heads.count * stride,
          stride};
}

// The larger of the words of warp h's lanes, which are of head h, over lanes and, through `words`, [items][kValueHeads],
// over blocks, into largest[h]. kFirst: what this block wrote before its last barrier is visible to the others of the row
// after their next one.
template <bool kFirst>
__device__ __forceinline__ void ExchangeMaximum(const Stripes& b, uint32_t word, uint32_t* words,
                                                float (&largest)[kValueHeads]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  word = __reduce_max_sync(0xffffffffu, word);
  if (b.ranks > 1) {
    if (lane == 0)
      kFirst ? PostLast(words + b.item * kValueHeads + warp, word) : Post(words + b.item * kValueHeads + warp, word);
    word = 0;
    if (lane < b.ranks) {
      const uint32_t* from = words + (b.item - b.rank + lane) * kValueHeads + warp;
      word = kFirst ? ReceiveLast(from) : Receive(from);
    }
    word = __reduce_max_sync(0xffffffffu, word);
  }
  if (lane == 0) largest[warp] = FromOrderedWord(word);
}

// The larger of a head's numbers over threads and, through `words`, [items][kValueHeads], over blocks, into `largest`. kFirst:
// what this block wrote before is visible to the others of the row after this, and theirs to it.
// Contains barriers of the block, the last thing in it.
template <bool kFirst>
__device__ __forceinline__ void ShareMaxima(const Stripes& b, const HeadWarps& of, float most, uint32_t* words,
                                            uint32_t (&of_warps)[kResidentWarps], float (&largest)[kValueHeads]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  uint32_t word = __reduce_max_sync(0xffffffffu, OrderedWord(most));
  if (lane == 0) of_warps[warp] = word;
  __syncthreads();
  if (warp < b.heads.count) {  // of.head is warp
    word = lane < of.warps ? of_warps[warp + lane * (kResidentWarps / of.warps)] : 0;
    ExchangeMaximum<kFirst>(b, word, words, largest);
  }
  __syncthreads();
}

// Exponentials in the place of scores, the sums of the stripe's lanes to every block of the row, totals.
__device__ __forceinline__ void Exponentials(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                             const HeadWarps& of, ResidentNumbers& s) {
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
  for (int i = tid; i < b.heads.count << b.shift; i += kSplitResidentThreads) {
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
template <int kHeadDim, int kMaxHeads>
__device__ __forceinline__ void WriteOutput(const SplitArgs& args, const Stripes& b, const float* largest,
                                            int32_t (&sums)[kMaxHeads][kHeadDim + 1]) {
  const AttentionArgs& a = args.attention;
  const int tid = static_cast<int>(threadIdx.x);
  const int all = b.heads.count * kHeadDim;
  const int slice = all / b.ranks;
  if (b.ranks > 1) {
    const int block = args.block_heads * kHeadDim;  // the last block of a KV head's heads may have fewer
    auto* words = reinterpret_cast<uint32_t*>(args.scratch.sums) + (b.item - b.rank) * block;
    for (int i = tid; i < all; i += kSplitResidentThreads) {
      if (i / slice != b.rank) Post(words + b.rank * block + i, CountWord(sums[i / kHeadDim][i % kHeadDim]));
    }
    for (int i = tid; i < all; i += kSplitResidentThreads) {
      const int from = i / slice;
      const int at = b.rank * slice + i % slice;
      if (from == b.rank) continue;
      atomicAdd(&sums[at / kHeadDim][at % kHeadDim], FromCountWord(Receive(words + from * block + at)));
    }
    __syncthreads();
  }
  for (int i = b.rank * slice + tid; i < (b.rank + 1) * slice; i += kSplitResidentThreads) {
    const int head = i / kHeadDim;
    const float scale = BipolarScale(largest[head], args.av.q_max);
    a.out[b.row.row * a.out_stride + static_cast<int64_t>(b.heads.first + head) * kHeadDim + i % kHeadDim] =
        (static_cast<float>(sums[head][i % kHeadDim]) * args.av.gain) * scale;
  }
}

// Asks for keys, values and scales of the row's first positions, which are memory's business and not the queries'.
__device__ __forceinline__ void Prefetch(const KvView& kv, const Stripes& b) {
  const int begin = b.row.first_unit() * kSplitUnit;
  const int end = min(b.row.length, begin + kResidentPrefetched * b.ranks);
  const int all = b.ranks * kSplitResidentThreads;
  const int first = b.rank * kSplitResidentThreads + static_cast<int>(threadIdx.x);
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
  auto* streams = static_cast<uint4*>(memory);
  auto* bytes = reinterpret_cast<uint8_t*>(streams + args.resident_masks * args.av.levels);
#pragma unroll 1
  for (int mask = static_cast<int>(threadIdx.x >> 5); mask < masks; mask += kResidentWarps) {
#pragma unroll 4
    for (int level = static_cast<int>(threadIdx.x & 31); level < args.av.levels; level += 32) {
      const uint4 stream = LoadStream(args.av, (b.rank << b.shift) + mask, level);
      streams[mask * args.av.levels + level] = stream;
      bytes[mask * args.av.levels + level] = static_cast<uint8_t>(-Ones(stream));
    }
  }
  return {streams, bytes, masks};
}

// Of what this block posts, words that are not there yet.
__device__ __forceinline__ void ClearWords(const SplitArgs& args, const Stripes& b) {
  const int tid = static_cast<int>(threadIdx.x);
  float* sums = args.scratch.lane_sums + HeadIndex(args, b.row, b.heads.first) * kRowLanes + (b.rank << b.shift);
  for (int i = tid; i < b.heads.count << b.shift; i += kSplitResidentThreads) {
    sums[(i >> b.shift) * kRowLanes + (i & (b.stripe() - 1))] = 0.0f;
  }
  const int head_dim = args.attention.kv.head_dim;
  int32_t* counts = args.scratch.sums + b.item * args.block_heads * head_dim;
  for (int i = tid; i < b.heads.count * head_dim; i += kSplitResidentThreads) counts[i] = 0;
}

}  // namespace stoch::cuda
