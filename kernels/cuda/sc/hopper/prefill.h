// SPDX-License-Identifier: Apache-2.0
// SC linears of many tokens on binary tensor cores: a count is popcount(A & B), so a linear is a binary matrix product
// of inner dimension D * stoc_len.
//
// Weights become thermometers in registers and activations become streams in memory once per call (streams.h); the
// signs ride in complemented streams plus an int8 product into the same accumulators (operand.cuh), and each
// chunk's sum is scaled into fp32 registers in chunk order.
// Bits:   docs/sc_arithmetic.md#5-back-to-real-numbers exactly, as every SC linear.
// Source: docs/fast-kernels.md#prompts.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/format/task.h"

namespace stoch::cuda {

// Activations that are no codes yet.
struct ScFloatRows {
  const RowSource& source;
  const SiteReporter& reporter;
};

struct ScPrefillOptions {
  const ScFloatRows* rows =
      nullptr;       // then of the activations only dims and tokens are there. Requires: a plan of kStreams
  int clusters = 0;  // at most this many, 0 = as many as run at once; for tests of the split
};

// y = a @ w^T (or y = y + that) for each task; all share the activations. Any number of tokens, rows and dimensions,
// any chunk_d, scramble and source.
// Requires: the plan of this launch, whose route is kScPrompt; 1 <= count <= kMaxScTasks.
// Scratch:  16 times the activations' bytes at stoc_len = 128, from ctx.workspace.
void LaunchScPrefill(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                     const ScLinearTask* tasks, int count, const ScPrefillOptions& options = {});

}  // namespace stoch::cuda
