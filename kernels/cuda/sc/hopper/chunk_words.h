// SPDX-License-Identifier: Apache-2.0
// SC linears of many rows with a stream length for each (row, chunk) on binary tensor cores: in each chunk a tile of 192
// rows costs what the longest length of its rows there does, shorter streams are zeros after their last cycle. So rows are
// put in order first, by the device: by their longest length, then by the first chunk that has it, so that few tiles have
// rows of rare long chunks.
//
// Bits:   docs/research.md#mixed-lengths, as on the CPU.
// Source: docs/fast-kernels.md#prompts.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/cuda/sc/format/task.h"

namespace stoch::cuda {

// y = a @ w^T (or y = y + that) for each task; all share the activations. Any number of tokens, rows and dimensions.
// Requires: lengths of kMixedChunks (PlanMixedPrompt); 1 <= count <= kMaxScTasks.
// Scratch:  MixedScratchBytes at most, from ctx.workspace.
void LaunchScChunkWords(DeviceContext& ctx, const CallLengths& lengths, const ScActivationView& a,
                        const ScLinearTask* tasks, int count);

}  // namespace stoch::cuda
