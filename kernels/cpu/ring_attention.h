// SPDX-License-Identifier: Apache-2.0
// Attention over positions that are dealt over logical devices (kernels/ring.h).
#pragma once

#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/context.h"
#include "kernels/ring.h"

namespace stoch::cpu {

void RingAttention(Context& context, const RingAttentionCall& call);
int64_t RingScratchBytes(const KvCacheSpec& spec, const PassLimits& limits);

// A checked call on its way: q and k rotated, k and v of the pass in the caches.
struct RingState {
  const RingAttentionCall& call;
  const PassLayout& pass;
  std::vector<std::vector<DealtRows>> dealt = {};  // [rank][sequence]
  std::vector<size_t> by_ring = {};                // sequences of the pass
  std::vector<size_t> by_query = {};
  std::vector<std::vector<float>> raw_q = {};  // [rank]: Context::raw_q of its rows

  int ranks() const { return static_cast<int>(call.parts.size()); }
  const AttentionCall& part(int rank) const { return call.parts[static_cast<size_t>(rank)]; }
  const CpuKvCache& cache(int rank) const { return static_cast<const CpuKvCache&>(*part(rank).cache); }
  Stripe stripe(int rank) const { return {rank, ranks()}; }
  const DealtRows& rows(int rank, size_t sequence) const { return dealt[static_cast<size_t>(rank)][sequence]; }
  // The rows of a rank in a sequence, as runs of consecutive positions; rows count from `first_row`.
  std::vector<PassLayout::Sequence> Runs(int rank, size_t sequence, int32_t first_row) const;
};

// Whether queries may go to the keys: one stream length for all rows, and SC or exact products.
bool HasQueryRoute(const CpuKvCache& cache, int layer);
// Queries travel: for few rows, such as a step of generation.
void AttendByQuery(Context& context, const RingState& state);
// Keys and values travel.
void AttendByRing(Context& context, const RingState& state);

}  // namespace stoch::cpu
