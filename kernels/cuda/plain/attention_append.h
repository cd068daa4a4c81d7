// SPDX-License-Identifier: Apache-2.0
// Before the scores of attention of any setting: RoPE, the append, the lengths of queries.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/mixed.h"

namespace stoch::cuda::plain_attention {

inline constexpr int kQkOperator = 8, kAvOperator = 9;  // ScSite::op

// ScSite::number of an operator and a head of a call.
inline uint64_t SiteNumber(const AttentionCall& call, int op, int64_t unit) {
  return ScSite{.layer = call.site.layer, .op = op, .unit = unit}.number();
}

// Where queries go: after RoPE they are in place too, which lengths go by.
struct AppendedQueries {
  uint8_t* codes = nullptr;   // kPerToken: [rows][num_heads][head_dim], divided by the factors, as they are read
  float* scales = nullptr;    // [rows][num_heads][KvView::key_scales]
  float* q_values = nullptr;  // kPerHead, kPerRow: [rows][num_heads][head_dim], divided by the factors
};
// Keys and values go to the cache as its mode has them.
void LaunchAppend(DeviceContext& ctx, const AttentionArgs& args, const AttentionCall& call,
                  const MixedProducts& products, const AppendedQueries& queries);

// metrics [rows][num_heads] of queries in place.
void LaunchQueryMetrics(DeviceContext& ctx, const AttentionArgs& args, const LengthView& view, float* metrics);

// slots [rows][num_heads] from metrics, call by call: a sequence, or what is recorded. extremes: two floats of scratch.
void DispatchCalls(DeviceContext& ctx, const LengthView& view, const AttentionArgs& args, const CudaPass& pass,
                   bool recording, const float* metrics, float* extremes, uint8_t* slots);
void DispatchSequence(DeviceContext& ctx, const LengthView& view, const AttentionArgs& args,
                      const PassSequence& sequence, const float* metrics, float* extremes, uint8_t* slots);

}  // namespace stoch::cuda::plain_attention
