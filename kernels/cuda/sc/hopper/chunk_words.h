// SPDX-License-Identifier: Apache-2.0
// SC linears of many rows with a stream length for each (row, chunk), on binary wgmma. In each chunk a tile of 192 rows
// takes as many words of streams as its row with the longest stream needs; shorter streams are zeros after their last
// cycle. So the device first sorts rows by their longest length, and then by the first chunk that has this length: rows
// that are long in a chunk that is rarely long then share few tiles.
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

// y = a @ w^T (or y = y + a @ w^T) for `count` tasks that share the activations. Any number of tokens, rows and
// dimensions.
// Requires: lengths for which PlanMixedPrompt chooses kMixedChunks, with a slot for each (row, chunk); 1 <= count <=
//           kMaxScTasks.
// Scratch:  MixedScratchBytes at most, from ctx.workspace.
void LaunchScChunkWords(DeviceContext& ctx, const CallLengths& lengths, const ScActivationView& a,
                        const ScLinearTask* tasks, int count);

}  // namespace stoch::cuda
