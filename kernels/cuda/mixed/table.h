// SPDX-License-Identifier: Apache-2.0
// Steps of a few rows with stream lengths of their own: one look-up of a weight for all rows, in tables that each row,
// or (row, chunk), has from the operator of its length (sc/table).
//
// Bits: docs/research.md#mixed-lengths, as on the CPU.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/mixed/step.h"

namespace stoch::cuda {

// Rows that a launch takes, and up to which several launches beat one product on tensor cores (docs/tuning/batch.md).
inline constexpr int64_t kMixedTableRows = kMaxBatchTableTokens;
inline constexpr int64_t kMixedLookupRows = 128;
static_assert(kMixedLookupRows >= kMixedDecodeRows);
// Of `left` rows of a call, those that go first: passes are even.
constexpr int64_t MixedTablePass(int64_t left) {
  const int64_t passes = (left + kMixedTableRows - 1) / kMixedTableRows;
  return (left + passes - 1) / passes;
}
// kFew or kTable, whichever takes so many rows of weights of this kind that DecodesMixed takes; kGeneric: neither.
ScKernel MixedLookupKernel(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features, int64_t rows);
// The same of a weight, without looking through its tables: whether it is one of them.
bool LooksUpMixed(DeviceContext& ctx, const MixedTask& task, int64_t rows);

// y = f(x) @ w^T, set or added, for tasks whose rows `prepared` holds; tasks of equal rules share launches.
// Requires: LooksUpMixed of every task.
void LaunchMixedTables(DeviceContext& ctx, const PreparedRows& prepared, std::span<const MixedTask> tasks,
                       const SiteReporter& reporter);

// Scratch of LaunchMixedTables besides the prepared rows, for weights of these sizes, in any grouping, at most.
int64_t MixedTableScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, std::span<const int64_t> out_features,
                               int64_t in_features, int64_t tokens);

}  // namespace stoch::cuda
