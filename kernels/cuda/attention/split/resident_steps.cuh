// SPDX-License-Identifier: Apache-2.0
// Steps that the resident kernels share, besides the softmax (resident_softmax.cuh): prefetches and copies issued
// before the scores, writing the output, and zeroing the words through which blocks exchange.
#pragma once

#include "kernels/cuda/attention/split/resident_softmax.cuh"
#include "kernels/cuda/attention/split/resident_values.cuh"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {

// Positions per block that are prefetched into L2 before the queries arrive.
inline constexpr int kResidentPrefetched = 512;

// Returns where a block keeps its scores in scratch if its row is too deep for shared memory.
__device__ __forceinline__ Scores ScratchScores(const SplitArgs& args, const Stripes& b) {
  const int stride = static_cast<int>(args.scratch.stride / b.ranks);
  return {args.scratch.scores + HeadIndex(args, b.row, b.heads.first) * args.scratch.stride +
              static_cast<int64_t>(b.rank) * b.heads.count * stride,
          stride, false};
}

// Reduces the sums of p v over the blocks of the row and writes the output: every block reduces and writes one slice of
// [heads][kHeadDim]. largest: [heads] the largest weights. Called by all threads after a barrier.
template <int kHeadDim, int kMaxHeads>
__device__ __forceinline__ void WriteOutput(const SplitArgs& args, const Stripes& b, const float* largest,
                                            int32_t (&sums)[kMaxHeads][kHeadDim + 1]) {
  const AttentionArgs& a = args.attention;
  const int tid = static_cast<int>(threadIdx.x);
  const int all = b.heads.count * kHeadDim;
  const int slice = all / b.ranks;
  if (b.ranks > 1) {
    // Words of one block. A KV head's last block has as many, though it may have fewer heads.
    const int block = args.block_heads * kHeadDim;
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
    const int at = (b.heads.first + head) * kHeadDim + i % kHeadDim;
    const float y = (static_cast<float>(sums[head][i % kHeadDim]) * args.av.gain) * scale;
    a.out[b.row.row * a.out_stride + at] = y;
    if (args.posted.q != nullptr) PostOutput(args.posted.out, args.peers, at, y);
  }
}

// Prefetches keys, values and scales of the row's first positions into L2, before the queries arrive. A warp takes a
// page at a time.
__device__ __forceinline__ void Prefetch(const KvView& kv, const Stripes& b) {
  const int begin = b.row.first_unit() * kSplitUnit >> kv.page_shift;
  const int end =
      min(((b.row.length - 1) >> kv.page_shift) + 1, begin + (kResidentPrefetched * b.ranks >> kv.page_shift));
  const int page_bytes = kv.head_dim << kv.page_shift;
#pragma unroll 1
  for (int p = begin + static_cast<int>(threadIdx.x >> 5) * b.ranks + b.rank; p < end; p += kResidentWarps * b.ranks) {
    const int32_t page = __ldg(b.pages + p);
    const int64_t at = kv.Value(page, b.heads.kv_head, 0);
    PrefetchL2(reinterpret_cast<const uint8_t*>(kv.k_words) + at, page_bytes);
    PrefetchL2(reinterpret_cast<const uint8_t*>(kv.v_words) + at, page_bytes);
    PrefetchL2(kv.k_scales + kv.Scale(page, b.heads.kv_head, 0), 4 << kv.page_shift);
    PrefetchL2(kv.v_scales + kv.Scale(page, b.heads.kv_head, 0), 4 << kv.page_shift);
  }
}

// Returns the WeightStreams at `memory` (shared) for the masks of the block's positions; with masks = 0, which means
// global memory, if the streams do not fit.
__device__ __forceinline__ WeightStreams StagedStreams(const SplitArgs& args, const Stripes& b, const void* memory) {
  const int masks = min(args.av.masks, b.stripe());
  if (masks > args.resident_masks) return {};
  return {SharedAddress(memory), masks};
}
// Issues asynchronous copies of the streams of weights to their place at `memory`, and returns the place
// (StagedStreams). Called by `threads` threads, this one being number `thread`; the caller commits the copies and waits
// for them.
__device__ __forceinline__ WeightStreams StageStreams(const SplitArgs& args, const Stripes& b, void* memory,
                                                      int thread = static_cast<int>(threadIdx.x),
                                                      int threads = kSplitResidentThreads) {
  const WeightStreams streams = StagedStreams(args, b, memory);
  const int count = streams.masks * args.av.levels;
  const int first = ((b.rank << b.shift) & (args.av.masks - 1)) * args.av.levels;
  const int shift = 31 - __clz(args.av.levels);
#pragma unroll 4
  for (int i = thread; i < count; i += threads) {
    const int to = i ^ static_cast<int>(WeightStreams::Turn(i >> shift, args.av.levels));
    const bool have = (i & (args.av.levels - 1)) != 0;  // level 0 has no ones: its stream is zero-filled
    if (args.av.stream_words == 4) {
      CopyAsync16(streams.at + to * 16, args.av.streams + static_cast<int64_t>(first + i) * 4, have);
    } else {
      const uint2 pair = have ? LoadTablePair(args.av.streams + static_cast<int64_t>(first + i) * 2) : make_uint2(0, 0);
      static_cast<uint4*>(memory)[to] = make_uint4(pair.x, pair.y, 0, 0);
    }
  }
  return streams;
}

// Zeroes the words of scratch in which this block will post its lane sums and its sums of p v. The exchange of the
// largest scores makes the zeros visible to the other blocks of the row (kFirst).
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

// Zeroes the words of args.flags in which this block posted its candidates and largest weights. All blocks of the row
// have read them: WriteOutput has received their sums of p v, which a block posts only after it has read the words.
__device__ __forceinline__ void ClearWeightWords(const SplitArgs& args, const Stripes& b) {
  const int tid = static_cast<int>(threadIdx.x);
  if (tid >= b.heads.count) return;
  CandidateWords(args, b)[tid * b.ranks + b.rank] = 0;
  WeightWords(args)[b.item * kValueHeads + tid] = 0;
}

}  // namespace stoch::cuda
