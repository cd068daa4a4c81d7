// SPDX-License-Identifier: Apache-2.0
// 17 to 32 rows of several lengths on binary wgmma: one product at the longest length, where shorter streams are zeros
// behind their last cycle, as prompt.h in the kernel of sc/tensor_core/batch_wgmma.h.
//
// Bits: docs/research.md#mixed-lengths, as on the CPU.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/mixed/step.h"

namespace stoch::cuda {

// How many of the next `left` rows a pass takes; 0 where that is none.
int64_t MixedBatchPass(int64_t left);

// Whether the kernel takes weights of this kind, or this one: streams that nest in halved ones of 128 cycles, on a GPU
// with wgmma.
bool BatchesMixed(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features);
bool BatchesMixed(DeviceContext& ctx, const MixedTask& task);

// y = f(x) @ w^T, set or added, of prepared rows.
// Requires: BatchesMixed, MixedBatchPass(rows) = rows; 1..kMaxScTasks tasks.
void LaunchMixedBatch(DeviceContext& ctx, const PreparedRows& prepared, std::span<const MixedTask> tasks,
                      const SiteReporter& reporter);

// Scratch of a launch for weights of these sizes, in any grouping, at most.
int64_t MixedBatchScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, std::span<const int64_t> out_features,
                               int64_t in_features, int64_t tokens);

}  // namespace stoch::cuda
