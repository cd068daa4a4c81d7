// SPDX-License-Identifier: Apache-2.0
// Warp-level steps of the append kernels: finding, loading and rotating a head vector (a query, key or value of a row),
// storing its codes in the cache, and picking a query's stream length.
#pragma once

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/head_vector.cuh"
#include "kernels/cuda/device/lengths.cuh"
#include "kernels/math/reduce.h"

namespace stoch::cuda {

// The work of one warp of an append kernel: one head vector of one row.
struct HeadJob {
  int row = 0;
  int head = 0;  // query head, or KV head of a key or value
  bool is_q = false;
  bool is_k = false;
  int32_t position = 0;

  // Sets the job with number `index`. A row has a job for each query head, then for each key, then for each value.
  // Returns false past the last job.
  __device__ __forceinline__ bool Find(const AttentionArgs& a, int index) {
    const int jobs = a.num_heads + 2 * a.kv.num_kv_heads;
    row = index / jobs;
    head = index % jobs;
    if (row >= a.rows) return false;
    position = a.pass.positions[row];
    is_q = head < a.num_heads;
    if (!is_q) head -= a.num_heads;
    is_k = !is_q && head < a.kv.num_kv_heads;
    if (!is_q && !is_k) head -= a.kv.num_kv_heads;
    return true;
  }
  // Loads the head vector into the registers of the warp, and applies RoPE to a query or key.
  template <int kPairs>
  __device__ __forceinline__ void Load(const AttentionArgs& a, HeadVector<kPairs>& x, int lane) const {
    const float* from = (is_q   ? a.q + row * a.q_stride
                         : is_k ? a.k + row * a.k_stride
                                : a.v + row * a.v_stride) +
                        head * a.kv.head_dim;
    const int half = a.kv.head_dim / 2;
    LoadHead(x, from, half, lane);
    if (is_q || is_k) Rotate(x, a.rope + a.rope_stripe.Below(position) * a.rope_stride, half, lane);
  }
};

// Writes the codes and the scale of a key or a value to its place in the cache, by one warp. slot: position within the
// page. code_of(dim, value): the code of one number.
template <int kPairs, typename CodeOf>
__device__ __forceinline__ void StoreCodes(const KvView& kv, bool is_k, int32_t page, int head, int slot,
                                           const HeadVector<kPairs>& x, int half, int lane, float scale,
                                           const CodeOf& code_of) {
  if (lane == 0) (is_k ? kv.k_scales : kv.v_scales)[kv.Scale(page, head, slot)] = scale;
  auto* const codes = reinterpret_cast<uint8_t*>(is_k ? kv.k_words : kv.v_words);
  ForEachDim(x, half, lane, [&](int i, float value) {
    const int64_t byte =
        is_k ? kv.KWord(page, head, i >> 2, slot) * 4 + (i & 3) : kv.VWord(page, head, slot >> 2, i) * 4 + (slot & 3);
    codes[byte] = code_of(i, value);
  });
}

// The metric by which a rule picks the stream length of a head vector (largest magnitude, L2 norm or their ratio, times
// a sign; kernels/sc/sc_lengths.h), in every lane of the warp. squares: kRowLanes floats of shared memory of this warp.
// Bits: as BlockMetric.
template <int kPairs>
__device__ inline float HeadMetric(const LengthView& view, const HeadVector<kPairs>& x, int half, int lane,
                                   float* squares) {
  const float amax = WarpMaxAbs(x);
  if (view.metric == ScMetric::kAmax) return view.sign * amax;
  constexpr int kEach = kRowLanes / 32;
#pragma unroll
  for (int k = 0; k < kEach; ++k) squares[k * 32 + lane] = 0.0f;
  __syncwarp();
  ForEachDim(x, half, lane, [&](int i, float value) { squares[i] = Fma(value, value, 0.0f); });
  __syncwarp();
  float lanes[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) lanes[k] = squares[k * 32 + lane];
  float sum = FoldLanes<kEach>(lanes);
#pragma unroll
  for (int s = 16; s > 0; s /= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, s);
  return SignedMetric(view, amax, Sqrt(sum));
}

// Copy in shared memory of the rule that picks a query's stream length, with the count tables of all lengths and
// scratch for the metric.
struct QueryRule {
  StagedRule rule;
  alignas(16) ByteTable tables[kMaxByteTables];
  float squares[kRowLanes];

  // Fills the copy, by the warp that calls SlotOf later. Reads nothing that an earlier kernel writes. Requires:
  // view.bytes is not null and view.slots <= kMaxByteTables.
  __device__ void Load(const LengthView& view, int lane) {
    StageRule(view, rule, lane, 32);
    if (lane < view.slots) tables[lane] = view.bytes[lane];
  }
  // The slot (index of the stream length) of the query x, in every lane of the warp; 0 without a rule.
  template <int kPairs>
  __device__ int SlotOf(const LengthView& lengths, const HeadVector<kPairs>& x, int half, int lane) {
    __syncwarp();
    const LengthView view = Staged(lengths, rule);
    if (!view.has_rule) return 0;
    return SlotOfLevel(view, FixedLevel(view, HeadMetric(view, x, half, lane, squares)), 0);
  }
};

}  // namespace stoch::cuda
