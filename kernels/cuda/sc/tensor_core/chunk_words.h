// SPDX-License-Identifier: Apache-2.0
// SC linears of many rows with a stream length for each (row, chunk) on binary tensor cores: in each chunk a tile of 192
// rows costs what the longest length of its rows there does, shorter streams are zeros behind their last cycle. So rows are
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

// Whether the kernel takes such lengths: at most 128 cycles, in orders whose ranks are direct (RanksAreDirect), on a GPU with
// wgmma and shared memory for two stages of them and the words of all tiles.
bool CanChunkWords(DeviceContext& ctx, const CallLengths& lengths, int64_t tokens);

// y = a @ w^T (or y = y + that) for each task; all share the activations. Any number of tokens, rows and dimensions.
// Requires: CanChunkWords; two groups or more and a slot for each (row, chunk); 1 <= count <= kMaxScTasks.
// Scratch:  ChunkWordsScratchBytes at most, from ctx.workspace.
void LaunchScChunkWords(DeviceContext& ctx, const CallLengths& lengths, const ScActivationView& a,
                        const ScLinearTask* tasks, int count);

int64_t ChunkWordsScratchBytes(const GpuTraits& gpu, const ScTraits& longest, const ScShape& shape);

}  // namespace stoch::cuda
