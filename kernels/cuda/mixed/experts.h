// SPDX-License-Identifier: Apache-2.0
// Experts whose rows are products of their own: protected channels, smoothing, lengths by call, and lengths that are shown.
//
// Bits: docs/research.md#experts, as on the CPU.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/mixed/rows.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// A linear of a mixture of experts for a pass of tokens. A slot is one (token, choice) pair.
struct GroupedExperts {
  std::span<const MixedWeight* const> weights;  // [experts] weight of each expert
  std::span<const ScExtras* const> extras;      // [experts] extras of each expert; null: none
  const int32_t* chosen = nullptr;              // [slots] expert of each slot, in device memory
  int64_t slots = 0;
  int64_t row_slots = 1;                      // slots that share a row of the input
  int64_t top_k = 1;                          // slots of a token
  std::span<const uint64_t> fault_rows = {};  // [tokens] rows of the fault streams; empty: no faults
};
// out[slot] = row slot / row_slots of the input @ w[chosen[slot]]^T. The host groups slots by expert, rows of an expert in
// order of their tokens, so it waits for the choice, and calls are eager (DeviceContext::RequireEager).
void LaunchGroupedExperts(DeviceContext& ctx, const OpSite& site, const MixedRows& input, const GroupedExperts& experts,
                          const SiteReporter& reporter, const LinearOutput& out);

}  // namespace stoch::cuda
