// SPDX-License-Identifier: Apache-2.0
// Prompts of linears whose rows, or (row, chunk)s, have stream lengths of their own: products on binary tensor cores, where
// shorter streams are zeros behind their last cycle. No wait for the host.
//
// Bits: docs/research.md#mixed-lengths, as on the CPU.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/mixed/step.h"
#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Rows from which these kernels beat several passes of those of decode steps.
inline constexpr int64_t kMixedPromptRows = 33;

// The operator of the longest length; null where lengths do not nest in it.
ScOperatorPtr NestingOperator(const LinearSpec& spec);

// Whether they take weights of this kind: as DecodesMixed, with streams that nest (kernels/sc/sc_nested.h) in place of
// bytes, on a GPU with wgmma.
bool PromptsMixed(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features);
// The same of a weight, without looking through its tables.
bool PromptsMixed(DeviceContext& ctx, const MixedTask& task);

// y = f(x) @ w^T, set or added, for tasks that PromptsMixed takes and SharesRows allows together.
// Requires: 1..kMaxScTasks tasks.
void LaunchMixedPrompt(DeviceContext& ctx, const OpSite& site, const RowSource& source, int64_t rows,
                       std::span<const MixedTask> tasks, const SiteReporter& reporter);

// Scratch of LaunchMixedPrompt for weights of these sizes, in any grouping, at most.
int64_t MixedPromptScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, std::span<const int64_t> out_features,
                                int64_t in_features, int64_t tokens);

}  // namespace stoch::cuda
