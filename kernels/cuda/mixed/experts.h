// SPDX-License-Identifier: Apache-2.0
// Experts that run one matrix product per expert, over the rows of all slots that chose it: for protected channels,
// smoothing, length rules that depend on the whole call, scales that rows share, and calls whose stream lengths are
// observed (LinearRoute::kExpertSorted).
//
// Bits: docs/research.md#experts, as on the CPU.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/mixed/rows.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// A linear of a mixture of experts for a pass of tokens. A slot is one (token, choice) pair.
struct SortedExperts {
  std::span<const MixedWeight* const> weights;  // [experts] weight of each expert
  std::span<const ScExtras* const> extras;      // [experts] extras of each expert; null: none
  const int32_t* chosen = nullptr;              // [slots] expert of each slot, in device memory
  int64_t slots = 0;
  int64_t row_slots = 1;                      // slots that share a row of the input
  int64_t top_k = 1;                          // slots of a token
  std::span<const uint64_t> fault_rows = {};  // [tokens] row numbers by which faults are drawn; empty: none
};
// out[slot] = f[slot / row_slots] @ w[chosen[slot]]^T, where `input` holds the rows f. The host groups slots by expert,
// and an expert's rows by token, so it waits for `chosen`, and the call is never part of a graph
// (DeviceContext::RequireEager).
void LaunchSortedExperts(DeviceContext& ctx, const OpSite& site, const MixedRows& input, const SortedExperts& experts,
                         const SiteReporter& reporter, const LinearOutput& out);

}  // namespace stoch::cuda
