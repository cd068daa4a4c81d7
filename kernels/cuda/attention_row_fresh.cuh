// A small pass without its append kernel: the row kernel rotates and quantizes what it needs of the pass itself.
//
// With at most kFreshRows rows in a pass, a row attends to at most that many positions that are not in the cache yet.
// Every block quantizes them again (a few hundred numbers), which costs less than a launch and a trip through memory;
// one block per row and KV head also writes its own row's k and v to the cache. Nothing in the cache that another block
// reads in the same pass is written: positions of the pass are always taken from here.
#pragma once

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/attention_row_words.cuh"
#include "kernels/cuda/head_vector.cuh"
#include "kernels/math/quantize.h"

namespace stoch::cuda {

// Codes and scales of one query head and of the pass's positions up to its own; shared memory.
struct FreshRows {
  static constexpr int kMaxHeadDim = 32 * 2 * kMaxPairs;
  static constexpr int kGroups = kFreshRows / 4 + 1;  // groups of four positions that kFreshRows can touch

  uint32_t q_words[kMaxHeadDim / 4];
  uint32_t k_words[kMaxHeadDim / 4][kFreshRows];  // byte = dim % 4
  uint32_t v_words[kGroups][kMaxHeadDim];         // groups from start / 4 on, byte = position % 4
  float q_scale;
  float k_scales[kFreshRows];
  float v_scales[kFreshRows];
};

// What:     fills `fresh` for query head `head` of `row`.
// Requires: all threads of a block of kWarps warps; head_dim <= 64 * kPairs; the caller puts a barrier behind it.
template <int kWarps, int kPairs>
__device__ void QuantizeFresh(const AttentionArgs& a, int qk_q_max, int av_q_max, const PassRow& info, int head,
                              FreshRows& fresh) {
  const int head_dim = a.kv.head_dim;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int half = head_dim / 2;
  const int count = info.position - info.start_position + 1;
  // Jobs: the query, then every k, then every v.
  for (int job = static_cast<int>(threadIdx.x >> 5); job < 1 + 2 * count; job += kWarps) {
    const bool is_q = job == 0;
    const bool is_v = job > count;
    const int index = is_q ? count - 1 : (job - 1) % count;  // which of the pass's positions
    const int position = info.start_position + index;
    const int64_t row = info.first_row + index;
    const float* from = is_q ? a.q + row * a.q_stride + head * head_dim
                             : (is_v ? a.v + row * a.v_stride : a.k + row * a.k_stride) + head / a.group * head_dim;
    HeadVector<kPairs> x;
    LoadHead(x, from, half, lane);
    if (!is_v) Rotate(x, a.rope + position * a.rope_stride, half, lane);
    const float max_abs = WarpMaxAbs(x);
    const int q_max = is_v ? av_q_max : qk_q_max;
    const float scale = BipolarScale(max_abs, q_max);
    if (lane == 0) {
      if (!IsFinite(max_abs)) a.finite.Report();
      *(is_q ? &fresh.q_scale : is_v ? &fresh.v_scales[index] : &fresh.k_scales[index]) = scale;
    }
    uint8_t* codes = reinterpret_cast<uint8_t*>(is_q   ? fresh.q_words
                                                : is_v ? fresh.v_words[(position >> 2) - (info.start_position >> 2)]
                                                       : &fresh.k_words[0][index]);
    if (is_v) codes += position & 3;
    ForEachDim(x, half, lane, [&](int i, float value) {
      const int at = is_q ? i : is_v ? 4 * i : (i >> 2) * 4 * kFreshRows + (i & 3);
      codes[at] = SignMagnitude(BipolarLevel(value, scale, q_max));
    });
  }
}

// What: writes the row's own k and v from `fresh` to the cache; `page` holds its position. All threads of the block.
__device__ inline void AppendFresh(const KvView& kv, const PassRow& info, int kv_head, int32_t page,
                                   const FreshRows& fresh) {
  const int tid = static_cast<int>(threadIdx.x);
  const int slot = info.position & (kv.page_tokens - 1);
  const int index = info.position - info.start_position;
  if (tid < kv.head_dim / 4) kv.k_words[kv.KWord(page, kv_head, tid, slot)] = fresh.k_words[tid][index];
  if (tid < kv.head_dim) {
    const uint32_t word = fresh.v_words[(info.position >> 2) - (info.start_position >> 2)][tid];
    uint8_t* to = reinterpret_cast<uint8_t*>(kv.v_words + kv.VWord(page, kv_head, slot >> 2, tid));
    to[slot & 3] = static_cast<uint8_t>(word >> (8 * (slot & 3)));
  }
  if (tid == 0) {
    kv.k_scales[kv.Scale(page, kv_head, slot)] = fresh.k_scales[index];
    kv.v_scales[kv.Scale(page, kv_head, slot)] = fresh.v_scales[index];
  }
}

// What: of the keys of tokens t .. t + 3 and dimensions of a warp's slice, replaces those of positions of the pass.
template <int kSlots>
__device__ __forceinline__ void TakeFresh(const FreshRows& fresh, const PassRow& info, int t, int slice,
                                          uint4 (&k)[kSlots]) {
  const int index = t - info.start_position;
  if (index + kLaneTokens <= 0 || index >= kFreshRows) return;
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    const auto take = [&](int i, uint32_t& word) {
      if (i >= 0 && i < kFreshRows) word = fresh.k_words[slice * kSlots + j][i];
    };
    take(index, k[j].x);
    take(index + 1, k[j].y);
    take(index + 2, k[j].z);
    take(index + 3, k[j].w);
  }
}

// What: a word of v of positions t .. t + 3 (t % 4 == 0): bytes before the pass from `cached`, the pass's from `fresh`,
//       0 behind the row's own.
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

}  // namespace stoch::cuda
