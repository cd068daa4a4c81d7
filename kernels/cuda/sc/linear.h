// SPDX-License-Identifier: Apache-2.0
// SC linears: launches what kernels/plan/linear/sc.h chooses.
//
// Bits: every kernel gives docs/sc_arithmetic.md#5-back-to-real-numbers exactly, so the choice is invisible.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/format/task.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

// y = f(x) @ w^T for `count` weights of one operator that share f(x): quantizes f(x) and launches the plan.
// Scratch: at most ScLinearScratchBytes of the shape, from ctx.workspace.
void LaunchScLinear(DeviceContext& ctx, const ScOperator& op, const RowSource& source, int64_t tokens,
                    int64_t in_features, const SiteReporter& reporter, const ScLinearTask* tasks, int count);

}  // namespace stoch::cuda
