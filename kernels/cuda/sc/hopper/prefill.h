// SPDX-License-Identifier: Apache-2.0
// SC linears of many tokens on binary wgmma (sm_90a): a count is popcount(A & B), so a linear is a binary matrix
// product of inner dimension D * stoc_len.
//
// Activations become streams in device memory once per call (sc/tensor_core/streams.h), and weights become thermometers
// in registers. Streams of negative numbers are complemented, which an int8 product into the same accumulators corrects
// (sc/tensor_core/operand.cuh). The integer sum of each chunk is scaled and added to fp32 registers in chunk order.
// Bits:   docs/sc_arithmetic.md#5-back-to-real-numbers exactly, as every SC linear.
// Source: docs/fast-kernels.md#prompts.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/format/task.h"

namespace stoch::cuda {

// Activations as rows of floats, which the launch quantizes: f(x) of `source`.
struct ScFloatRows {
  const RowSource& source;
  const SiteReporter& reporter;
};

struct ScPrefillOptions {
  // Activations as floats, if the plan's quantizer is ScQuantizer::kStreams: only dims and tokens of the
  // ScActivationView are then read. Null: the view has codes.
  const ScFloatRows* rows = nullptr;
  int clusters = 0;  // clusters of the launch, at most; 0: as many as run at once. For tests of the split
};

// y = a @ w^T (or y = y + a @ w^T) for `count` tasks that share the activations. Any number of tokens, rows and
// dimensions, any chunk_d, scramble and source.
// Requires: the plan of this call, whose route is kScPrompt; 1 <= count <= kMaxScTasks.
// Scratch:  from ctx.workspace, the activations as streams with their factors for signs (18 bytes for a code at
//           stoc_len = 128), and partial outputs of tiles whose chunks several clusters divide (PrefillSchedule).
void LaunchScPrefill(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                     const ScLinearTask* tasks, int count, const ScPrefillOptions& options = {});

}  // namespace stoch::cuda
