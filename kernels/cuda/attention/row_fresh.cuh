// SPDX-License-Identifier: Apache-2.0
// A small pass without its append kernel: the row kernel rotates and quantizes what it needs of the pass itself.
//
// With at most kFreshRows rows in a pass, a row attends to at most that many positions that are not in the cache yet.
// Every block quantizes them again (a few hundred numbers), which costs less than a launch and a trip through memory;
// one block per row and KV head also writes its own row's k and v to the cache. Nothing in the cache that another block
// reads in the same pass is written: positions of the pass are always taken from here.
#pragma once

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/row_stage.cuh"
#include "kernels/cuda/attention/row_words.cuh"
#include "kernels/cuda/device/head_vector.cuh"
#include "kernels/math/quantize.h"

namespace stoch::cuda {

// Codes and scales of one query head and of the pass's positions up to its own; shared memory.
struct FreshRows {
  static constexpr int kMaxHeadDim = 32 * 2 * kMaxPairs;
  static constexpr int kGroups = kFreshRows / 4 + 1;  // groups of four positions that kFreshRows can touch

  alignas(16) uint32_t q_words[kMaxHeadDim / 4];
  alignas(16) uint32_t k_words[kMaxHeadDim / 4][4 * kGroups];  // positions from start / 4 * 4 on, byte = dim % 4
  alignas(16) uint32_t v_words[kGroups][kMaxHeadDim];          // groups from start / 4 on, byte = position % 4
  float q_scale;
  float k_scales[kFreshRows];
  float v_scales[kFreshRows];
};

// Fills `fresh` for query head `head` of `row`. of_query(x): called by the warp that has the query, after RoPE.
// Requires: all threads of a block of kWarps warps; head_dim <= 64 * kPairs; the caller puts a barrier after it.
// kPosted: of one row, as `posted` has it.
template <int kWarps, int kPairs, bool kPosted, typename OfQuery>
__device__ __forceinline__ void QuantizeFresh(const AttentionArgs& a, const HeadNorm& norm, const PostedHeads& posted,
                                              int qk_q_max, int av_q_max, const PassRow& info, int head, int kv_head,
                                              FreshRows& fresh, const OfQuery& of_query) {
  const int head_dim = a.kv.head_dim;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int half = head_dim / 2;
  const int count = info.position - info.start_position + 1;
  // Jobs: the query, then every k, then every v.
#pragma unroll 1
  for (int job = static_cast<int>(threadIdx.x >> 5); job < 1 + 2 * count; job += kWarps) {
    const bool is_q = job == 0;
    const bool is_v = job > count;
    const int index = is_q ? count - 1 : job - 1 - (is_v ? count : 0);  // which of the pass's positions
    const int position = info.start_position + index;
    const int64_t row = info.first_row + index;
    const float* from = is_q ? a.q + row * a.q_stride + head * head_dim
                             : (is_v ? a.v + row * a.v_stride : a.k + row * a.k_stride) + kv_head * head_dim;
    HeadVector<kPairs> x;
    if constexpr (kPosted) {
      HeadVector<kPairs> weights;  // what does not depend on the previous kernel first
      HeadVector<kPairs> turn;
      if (!is_v && norm.q != nullptr) LoadHead(weights, is_q ? norm.q : norm.k, half, lane);
      if (!is_v) LoadHead(turn, a.rope + position * a.rope_stride, half, lane);
      ReceiveHead(x, is_q ? posted.q + head * head_dim : (is_v ? posted.v : posted.k) + kv_head * head_dim, half, lane);
      if (!is_v && norm.q != nullptr) NormHead(x, weights, norm.eps, half);
      if (!is_v) Rotate(x, turn, half, lane);
    } else {
      LoadHead(x, from, half, lane);
      if (!is_v && norm.q != nullptr) NormHead(x, is_q ? norm.q : norm.k, norm.eps, half, lane);
      if (!is_v) Rotate(x, a.rope + position * a.rope_stride, half, lane);
    }
    if (is_q) of_query(x);
    const float max_abs = WarpMaxAbs(x);
    const int q_max = is_v ? av_q_max : qk_q_max;
    const float scale = BipolarScale(max_abs, q_max);
    if (lane == 0) {
      if (!IsFinite(max_abs)) a.reporter.Report();
      *(is_q ? &fresh.q_scale : is_v ? &fresh.v_scales[index] : &fresh.k_scales[index]) = scale;
    }
    const int slot = position - (info.start_position & ~3);
    uint8_t* codes = reinterpret_cast<uint8_t*>(is_q   ? fresh.q_words
                                                : is_v ? fresh.v_words[slot >> 2]
                                                       : &fresh.k_words[0][slot]);
    if (is_v) codes += position & 3;
    // Place of dimension i: byte i of the query's, byte i % 4 of a k word, a word of its own of v.
    const int word = is_q ? 4 : is_v ? 16 : static_cast<int>(sizeof(fresh.k_words[0]));
    const int byte = is_v ? 4 : 1;
    ForEachDim(x, half, lane, [&](int i, float value) {
      codes[(i >> 2) * word + (i & 3) * byte] = SignMagnitude(BipolarLevel(value, scale, q_max));
    });
  }
}

// Writes the row's own k and v from `fresh` to the cache; `page` holds its position. All threads of the block.
__device__ __forceinline__ void AppendFresh(const KvView& kv, const PassRow& info, int kv_head, int32_t page,
                                            const FreshRows& fresh) {
  const int tid = static_cast<int>(threadIdx.x);
  const int slot = info.position & (kv.page_tokens - 1);
  const int own = info.position - (info.start_position & ~3);
  if (tid < kv.head_dim / 4) kv.k_words[kv.KWord(page, kv_head, tid, slot)] = fresh.k_words[tid][own];
  if (tid < kv.head_dim) {
    uint8_t* to = reinterpret_cast<uint8_t*>(kv.v_words + kv.VWord(page, kv_head, slot >> 2, tid));
    to[slot & 3] = static_cast<uint8_t>(fresh.v_words[own >> 2][tid] >> (8 * (slot & 3)));
  }
  if (tid == 0) {
    const int index = info.position - info.start_position;
    kv.k_scales[kv.Scale(page, kv_head, slot)] = fresh.k_scales[index];
    kv.v_scales[kv.Scale(page, kv_head, slot)] = fresh.v_scales[index];
  }
}

// Among the keys of tokens t .. t + 3 (t % 4 == 0) and dimensions of a warp's slice, replaces those of positions of the
// pass.
template <int kSlots>
__device__ __forceinline__ void TakeFresh(const FreshRows& fresh, const PassRow& info, int t, int slice,
                                          uint4 (&k)[kSlots]) {
  const int slot = t - (info.start_position & ~3);
  if (slot < 0 || t > info.position) return;
  const int old = info.start_position - t;  // tokens to take from the cache
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    const uint4 own = *reinterpret_cast<const uint4*>(&fresh.k_words[slice * kSlots + j][slot]);
    if (old <= 0) k[j].x = own.x;
    if (old <= 1) k[j].y = own.y;
    if (old <= 2) k[j].z = own.z;
    k[j].w = own.w;
  }
}

// A word of v of positions t .. t + 3 (t % 4 == 0): bytes before the pass from `cached`, the pass's from `fresh`, 0
// after the row's own.
__device__ __forceinline__ uint32_t MergeFresh(const FreshRows& fresh, const PassRow& info, int t, int dim,
                                               uint32_t cached) {
  const int old = info.start_position - t;  // bytes to take from the cache
  const int valid = info.position + 1 - t;  // bytes to keep
  if (old >= 4) return cached;
  const uint32_t old_mask = old <= 0 ? 0u : (1u << (8 * old)) - 1;
  const uint32_t valid_mask = valid >= 4 ? 0xffffffffu : (1u << (8 * valid)) - 1;
  const uint32_t own = fresh.v_words[(t >> 2) - (info.start_position >> 2)][dim];
  return ((cached & old_mask) | (own & ~old_mask)) & valid_mask;
}

// The pass's positions among the values that a warp adds up. They touch fewer groups of four than there are warps, so
// at most one that is its own.
template <int kSlots>
struct FreshValues {
  static_assert(FreshRows::kGroups <= kBlockWarps);
  int group = -1;             // of the warp's, counted from the block's first token; negative: none
  uint32_t cached_mask = 0;   // bytes to take from the cache
  uint32_t own[kSlots] = {};  // the others

  // local_of(t): which of the block's tokens position t is; negative: another block's.
  template <typename LocalOf>
  __device__ __forceinline__ void Find(const FreshRows& fresh, const PassRow& info, int head_dim,
                                       const LocalOf& local_of) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    const int warp = static_cast<int>(threadIdx.x >> 5);
    const int first = info.start_position >> 2;
    const int t = (first + ((warp - first) & (kBlockWarps - 1))) * 4;
    if (t > info.position) return;
    const int local = local_of(t);
    group = local < 0 ? -1 : local / kTurnTokens;
    const int old = info.start_position - t;
    cached_mask = old <= 0 ? 0u : (1u << (8 * old)) - 1;
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      const int dim = ValueWords<kSlots>::Dim(lane, j);
      own[j] = dim < head_dim ? MergeFresh(fresh, info, t, dim, 0) : 0;
    }
  }
  __device__ __forceinline__ void Take(ValueWords<kSlots>& v) const {
#pragma unroll
    for (int j = 0; j < kSlots; ++j) v.word[j] = (v.word[j] & cached_mask) | own[j];
  }
};

}  // namespace stoch::cuda
