// SPDX-License-Identifier: Apache-2.0
// SC linears of 9 tokens and more on GPUs without wgmma: a matrix product in tiles on mma.sync.
//
// Activations become token operands in device memory once per call: streams (tensor_core/streams.h), or the operands of
// the closed form (closed_operands.h). Weights stay codes, from which every warp makes its operands in registers.
// Bits:   docs/sc_arithmetic.md#5-back-to-real-numbers exactly, as every SC linear.
// Source: docs/fast-kernels.md#prompts.
#pragma once

#include "kernels/cuda/sc/hopper/prefill.h"

namespace stoch::cuda {

// y = a @ w^T (or y = y + a @ w^T) for `count` tasks that share the activations. Any number of rows and dimensions, any
// chunk_d, scramble and source.
// rows: if the plan's quantizer is kStreams, the activations as floats, which this call quantizes, reading only dims
// and tokens of `a`; else null.
// Requires: the plan of this call, whose route is kScTiles or kScTilesSplit; 1 <= count <= kMaxScTasks.
// Scratch:  token operands, up to 18 times the activations' code bytes at stoc_len = 128, and split-K partials, from
//           ctx.workspace.
void LaunchScTiles(DeviceContext& ctx, const LinearPlan& plan, const ScOperator& op, const ScActivationView& a,
                   const SiteReporter& reporter, const ScLinearTask* tasks, int count,
                   const ScFloatRows* rows = nullptr);

}  // namespace stoch::cuda
