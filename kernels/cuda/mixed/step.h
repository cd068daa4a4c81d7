// SPDX-License-Identifier: Apache-2.0
// Decode steps of linears whose rows, or (row, chunk)s, have stream lengths of their own: no wait for the host, so that
// a graph may hold them, and one launch for weights that share f(x).
//
// Bits: docs/research.md#mixed-lengths, as on the CPU.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/decode/decode.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/weights/mixed.h"

namespace stoch::cuda {

// Rows up to which these kernels take a call, some of them at a time.
inline constexpr int64_t kMixedDecodeRows = 32;

// Whether they take weights of this kind: products of signs and magnitudes with bytes for every length, chunks of at
// most 128, a scale a row, no protected channels, no smoothing, lengths that depend on their row alone.
bool DecodesMixed(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features);

// One weight of a call, and where its product goes.
struct MixedTask {
  const MixedWeight* weight = nullptr;
  const LinearSpec* spec = nullptr;
  LinearOutput out;
};
// Whether a weight is one of those, as DecodesMixed says, without looking through its tables.
bool DecodesMixed(const DeviceContext& ctx, const MixedTask& task);
// Whether two of them can share a launch.
bool SharesRows(const MixedTask& a, const MixedTask& b);

// y = f(x) @ w^T, set or added, for tasks that DecodesMixed takes and SharesRows allows together.
// Requires: 1..kMaxScTasks tasks.
void LaunchMixedDecode(DeviceContext& ctx, const OpSite& site, const RowSource& source, int64_t rows,
                       std::span<const MixedTask> tasks, const SiteReporter& reporter);

// ---- What prompts (prompt.h) share with it.
// All of DecodesMixed but the tables.
bool HasPlainRows(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features);
// The quantized rows of a call and the slots of its tasks, in scratch.
struct PreparedRows {
  ScActivationView a;
  std::array<ScTaskLengths, kMaxScTasks> lengths;
};
PreparedRows PrepareMixedRows(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t rows,
                              std::span<const MixedTask> tasks, const SiteReporter& reporter);
int64_t PreparedSlotBytes(const LinearSpec& spec, int64_t in_features, int64_t tokens);
// Shows the observer, if there is one, what the rows ran at.
void ShowLengths(DeviceContext& ctx, const OpSite& site, std::span<const MixedTask> tasks, const PreparedRows& prepared,
                 int64_t rows);

// Scratch of LaunchMixedDecode for weights of these sizes, in any grouping, at most.
int64_t MixedDecodeScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, std::span<const int64_t> out_features,
                                int64_t in_features, int64_t tokens);

}  // namespace stoch::cuda
