// SPDX-License-Identifier: Apache-2.0
// SC linears of 9 tokens and more on GPUs without wgmma: a binary matrix product in tiles, on mma.sync.
//
// Activations become streams in memory once per call (tensor_core/streams.h) and weights thermometers in registers, as
// in hopper/prefill.h.
// Bits:   docs/sc_arithmetic.md#5-back-to-real-numbers exactly, as every SC linear.
// Source: docs/fast-kernels.md#prompts.
#pragma once

#include "kernels/cuda/sc/hopper/prefill.h"

namespace stoch::cuda {

// y = a @ w^T (or y = y + that) for each task; all share the activations. Any number of rows and dimensions, any chunk_d,
// scramble and source.
// Requires: the plan of this launch, whose route is kScTiles or kScTilesSplit; 1 <= count <= kMaxScTasks; `rows` for plans
//           of kStreams, of activations of which only dims and tokens are there.
// Scratch:  16 times the activations' bytes at stoc_len = 128, and split sums, from ctx.workspace.
void LaunchScTiles(DeviceContext& ctx, const LinearPlan& plan, const ScOperator& op, const ScActivationView& a,
                   const SiteReporter& reporter, const ScLinearTask* tasks, int count,
                   const ScFloatRows* rows = nullptr);

}  // namespace stoch::cuda
