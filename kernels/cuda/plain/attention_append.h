// SPDX-License-Identifier: Apache-2.0
// Attention of any setting, before the scores: RoPE, the append to the cache, and the stream lengths of queries.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/mixed.h"

namespace stoch::cuda::plain_attention {

inline constexpr int kQkOperator = 8, kAvOperator = 9;  // ScSite::op of the products q k and p v

// ScSite::number, which faults are drawn by, of an operator and a head (`unit`) of a call.
inline uint64_t SiteNumber(const AttentionCall& call, int op, int64_t unit) {
  return ScSite{.layer = call.site.layer, .op = op, .unit = unit}.number();
}

// Where the quantized or smoothed queries of a pass go. The queries after RoPE also replace AttentionArgs::q, which
// stream lengths depend on.
struct AppendedQueries {
  // kPerToken: codes [rows][num_heads][head_dim] of the queries divided by the smoothing factors, with faults applied.
  uint8_t* codes = nullptr;
  float* scales = nullptr;  // kPerToken: scales [rows][num_heads][KvView::key_scales]
  // kPerHead, kPerRow: the queries divided by the smoothing factors, [rows][num_heads][head_dim].
  float* q_values = nullptr;
};
// Rotates queries and keys (RoPE), appends keys and values to the cache as codes (kPerToken) or floats, and writes the
// arrays of `queries`. If args.k is null, the cache has the keys and values already. slots: as LaunchAppendCodes.
void LaunchAppend(DeviceContext& ctx, const AttentionArgs& args, const AttentionCall& call,
                  const MixedProducts& products, const AppendedQueries& queries, const int32_t* slots = nullptr);

// Writes the metrics [rows][num_heads] of the queries in args.q, by which a rule picks stream lengths
// (kernels/sc/sc_lengths.h).
void LaunchQueryMetrics(DeviceContext& ctx, const AttentionArgs& args, const LengthView& view, float* metrics);

// Writes slots [rows][num_heads] (indices of stream lengths) from metrics. The rule sees each sequence as one call, or,
// while a graph is recorded, the whole pass. extremes: scratch of two floats.
void DispatchCalls(DeviceContext& ctx, const LengthView& view, const AttentionArgs& args, const CudaPass& pass,
                   bool recording, const float* metrics, float* extremes, uint8_t* slots);
// DispatchCalls for one sequence.
void DispatchSequence(DeviceContext& ctx, const LengthView& view, const AttentionArgs& args,
                      const PassSequence& sequence, const float* metrics, float* extremes, uint8_t* slots);

}  // namespace stoch::cuda::plain_attention
