// SPDX-License-Identifier: Apache-2.0
// Resident kernels of a one-row pass whose q, k and v the previous kernel posts word by word: each block receives and
// quantizes its own queries, and the block that owns the row's position appends the key and value to the cache. So no
// append kernel runs in between.
#pragma once

#include "kernels/cuda/attention/append.cuh"
#include "kernels/cuda/attention/split/parts.cuh"
#include "kernels/cuda/attention/split/resident.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {

// Receives, rotates and quantizes the block's queries: codes to `codes`, [heads][kHeadDim], and scales to `scales`,
// [heads], both in shared memory. The block that owns the row's position also writes the row's key and value to the
// cache. A warp per head; called by all threads, and the caller puts a barrier after it. Requires: args.posted.q is not
// null.
template <int kHeadDim>
__device__ __forceinline__ void QuantizePosted(const SplitArgs& args, const Stripes& b, uint8_t* codes, float* scales) {
  constexpr int kHalf = kHeadDim / 2;
  const AttentionArgs& a = args.attention;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  static_assert(kResidentWarps >= kValueHeads + 2);  // a warp for each query head, for the key and for the value
  const int position = b.row.length - 1;
  const bool owns = (position & (kSplitUnit - 1)) >> b.shift == b.rank;
  if (warp >= b.heads.count + (owns ? 2 : 0)) return;
  const bool is_q = warp < b.heads.count;
  const bool is_v = warp == b.heads.count + 1;
  HeadVector<kHalf / 32> turn;
  if (!is_v) LoadHead(turn, a.rope + position * a.rope_stride, kHalf, lane);
  HeadVector<kHalf / 32> x;
  ReceiveHead(x,
              is_q ? args.posted.q + (b.heads.first + warp) * kHeadDim
                   : (is_v ? args.posted.v : args.posted.k) + b.heads.kv_head * kHeadDim,
              kHalf, lane);
  if (!is_v) Rotate(x, turn, kHalf, lane);
  const float max_abs = WarpMaxAbs(x);
  if (lane == 0 && !IsFinite(max_abs)) a.reporter.Report();
  const int q_max = is_v ? args.av.q_max : args.qk.q_max;
  const float scale = BipolarScale(max_abs, q_max);
  if (is_q) {
    if (lane == 0) scales[warp] = scale;
    ForEachDim(x, kHalf, lane, [&](int i, float value) {
      codes[warp * kHeadDim + i] = SignMagnitude(BipolarLevel(value, scale, q_max));
    });
    return;
  }
  const KvPlace at = PlaceOf(a.kv, b.pages, position);
  StoreCodes(a.kv, !is_v, at.page, b.heads.kv_head, at.slot, x, kHalf, lane, scale,
             [&](int /*dim*/, float value) { return SignMagnitude(BipolarLevel(value, scale, q_max)); });
}

// Waits until the previous kernel has ended, and returns the block's quantized queries. If posted.q is null they are in
// args.q; else QuantizePosted makes them in shared memory, codes at `codes` and scales at `scales`. Called by all
// threads.
template <int kHeadDim>
__device__ __forceinline__ Queries TakeQueries(const SplitArgs& args, const Stripes& b, void* codes,
                                               float (&scales)[kValueHeads]) {
  const AttentionArgs& a = args.attention;
  if (args.posted.q == nullptr) {
    WaitForPrevious();
    a.reporter.Begin();
    const int64_t vector = static_cast<int64_t>(b.row.row) * a.num_heads + b.heads.first;
    return {args.q.words + vector * (kHeadDim / 4), args.q.scales + vector};
  }
  QuantizePosted<kHeadDim>(args, b, static_cast<uint8_t*>(codes), scales);
  __syncthreads();
  WaitForPrevious();
  a.reporter.Begin();
  return {static_cast<const uint32_t*>(codes), scales};
}

// Zeroes the words that this kernel has to clear for later rows (posted.out.clear). Called by all blocks of the row
// after WaitForPrevious.
__device__ __forceinline__ void ClearPosted(const SplitArgs& args, const Stripes& b) {
  ClearRow(args.posted.out, b.item, b.ranks * args.attention.kv.num_kv_heads * args.head_blocks);
}

}  // namespace stoch::cuda
