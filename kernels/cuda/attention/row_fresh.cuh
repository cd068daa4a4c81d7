// SPDX-License-Identifier: Apache-2.0
// Small passes run without an append kernel: the row kernel itself rotates and quantizes the query, and the keys and
// values of the pass that the query attends to.
//
// In a pass of at most kFreshRows rows, a row attends to at most that many positions that are not in the cache yet.
// Every block quantizes them again (a few hundred numbers), which costs less than another launch and a trip through
// memory. One block per row and KV head also appends the row's k and v to the cache. No block reads the cache at
// positions of the pass, which other blocks may still be writing: their keys and values come from FreshRows.
#pragma once

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/row_stage.cuh"
#include "kernels/cuda/attention/row_words.cuh"
#include "kernels/cuda/device/head_vector.cuh"
#include "kernels/math/quantize.h"

namespace stoch::cuda {

// Codes and scales of one query head, and of the keys and values at the pass's positions up to the query's own; in
// shared memory.
struct FreshRows {
  static constexpr int kMaxHeadDim = 32 * 2 * kMaxPairs;
  // Groups of four positions that kFreshRows consecutive positions can touch.
  static constexpr int kGroups = kFreshRows / 4 + 1;

  // Codes of the query, byte = dim % 4.
  alignas(16) uint32_t q_words[kMaxHeadDim / 4];
  // Codes of keys; the second index is position - start_position / 4 * 4, byte = dim % 4.
  alignas(16) uint32_t k_words[kMaxHeadDim / 4][4 * kGroups];
  // Codes of values; the first index is position / 4 - start_position / 4, byte = position % 4.
  alignas(16) uint32_t v_words[kGroups][kMaxHeadDim];
  // Scales of the query, and of the keys and values by position in the pass.
  float q_scale;
  float k_scales[kFreshRows];
  float v_scales[kFreshRows];
};

// Fills `fresh` for the row `info` and query head `head`, one warp per head vector. of_query(x) is called by the warp
// that has the query, after RoPE. kPosted: the pass has one row, whose floats are polled from the words of `posted`;
// else they are in a.q, a.k and a.v. Called by all threads of a block of kWarps warps; the caller puts a barrier after
// it. Requires: head_dim <= 64 * kPairs.
template <int kWarps, int kPairs, bool kPosted, typename OfQuery>
__device__ __forceinline__ void QuantizeFresh(const AttentionArgs& a, const HeadNorm& norm, const PostedHeads& posted,
                                              int qk_q_max, int av_q_max, const PassRow& info, int head, int kv_head,
                                              FreshRows& fresh, const OfQuery& of_query) {
  const int head_dim = a.kv.head_dim;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int half = head_dim / 2;
  const int count = info.position - info.start_position + 1;
  // Job 0 is the query, then each key is a job, then each value.
#pragma unroll 1
  for (int job = static_cast<int>(threadIdx.x >> 5); job < 1 + 2 * count; job += kWarps) {
    const bool is_q = job == 0;
    const bool is_v = job > count;
    // Index of the job's position among the positions of the pass.
    const int index = is_q ? count - 1 : job - 1 - (is_v ? count : 0);
    const int position = info.start_position + index;
    const int64_t row = info.first_row + index;
    const float* from = is_q ? a.q + row * a.q_stride + head * head_dim
                             : (is_v ? a.v + row * a.v_stride : a.k + row * a.k_stride) + kv_head * head_dim;
    HeadVector<kPairs> x;
    if constexpr (kPosted) {
      HeadVector<kPairs> weights;  // loads that do not depend on the previous kernel come before the polling
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
    // Bytes from one group of four dimensions to the next, and from one dimension to the next within a group.
    const int word = is_q ? 4 : is_v ? 16 : static_cast<int>(sizeof(fresh.k_words[0]));
    const int byte = is_v ? 4 : 1;
    ForEachDim(x, half, lane, [&](int i, float value) {
      codes[(i >> 2) * word + (i & 3) * byte] = SignMagnitude(BipolarLevel(value, scale, q_max));
    });
  }
}

// Writes the k and v of the row `info` from `fresh` to the cache, by all threads of a block. page: the page that holds
// the row's position.
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

// Replaces keys of the pass in k, the key words that a lane loaded for tokens t .. t + 3 (t % 4 == 0), by those of
// `fresh`. slice: index of the warp, which has kSlots words of each key.
template <int kSlots>
__device__ __forceinline__ void TakeFresh(const FreshRows& fresh, const PassRow& info, int t, int slice,
                                          uint4 (&k)[kSlots]) {
  const int slot = t - (info.start_position & ~3);
  if (slot < 0 || t > info.position) return;
  const int old = info.start_position - t;  // number of the four tokens that are from before the pass
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    const uint4 own = *reinterpret_cast<const uint4*>(&fresh.k_words[slice * kSlots + j][slot]);
    if (old <= 0) k[j].x = own.x;
    if (old <= 1) k[j].y = own.y;
    if (old <= 2) k[j].z = own.z;
    k[j].w = own.w;
  }
}

// Returns the value word of dimension dim at positions t .. t + 3 (t % 4 == 0): bytes of positions before the pass come
// from `cached`, bytes of the pass from `fresh`, bytes after the row's position are 0.
__device__ __forceinline__ uint32_t MergeFresh(const FreshRows& fresh, const PassRow& info, int t, int dim,
                                               uint32_t cached) {
  const int old = info.start_position - t;  // bytes to take from `cached`
  const int valid = info.position + 1 - t;  // bytes up to the row's own position
  if (old >= 4) return cached;
  const uint32_t old_mask = old <= 0 ? 0u : (1u << (8 * old)) - 1;
  const uint32_t valid_mask = valid >= 4 ? 0xffffffffu : (1u << (8 * valid)) - 1;
  const uint32_t own = fresh.v_words[(t >> 2) - (info.start_position >> 2)][dim];
  return ((cached & old_mask) | (own & ~old_mask)) & valid_mask;
}

// Values at positions of the pass that a warp adds in p v. Positions of the pass touch fewer groups of four than there
// are warps, so a warp has at most one such group.
template <int kSlots>
struct FreshValues {
  static_assert(FreshRows::kGroups <= kBlockWarps);
  // Index of that group among the warp's groups, counted from the block's first token; negative: none.
  int group = -1;
  uint32_t cached_mask = 0;   // bytes of the group that come from the cache
  uint32_t own[kSlots] = {};  // the other bytes of the group, by dimension of the lane

  // Finds the warp's group. local_of(t): index of position t among the block's tokens; negative: another block has it.
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
  // Puts the bytes of the pass into the value words that were loaded from the cache.
  __device__ __forceinline__ void Take(ValueWords<kSlots>& v) const {
#pragma unroll
    for (int j = 0; j < kSlots; ++j) v.word[j] = (v.word[j] & cached_mask) | own[j];
  }
};

}  // namespace stoch::cuda
