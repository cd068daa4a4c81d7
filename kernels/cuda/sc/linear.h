// SPDX-License-Identifier: Apache-2.0
// SC linears of one stream length: quantizes the activations and launches the kernel that PlanScLinear
// (kernels/plan/linear/sc.h) chooses.
//
// Bits: every kernel gives docs/sc_arithmetic.md#5-back-to-real-numbers exactly, so outputs do not depend on the
//       choice.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/format/task.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

// tasks[i].out = f(x) @ w_i^T (or += if out.add) for `count` tasks of one operator. They share f(x): x is the rows of
// `source`, f its prologue. More than kMaxScTasks tasks take several launches.
// Scratch:  at most ScLinearScratchBytes of the shape, from ctx.workspace.
void LaunchScLinear(DeviceContext& ctx, const ScOperator& op, const RowSource& source, int64_t tokens,
                    int64_t in_features, const SiteReporter& reporter, const ScLinearTask* tasks, int count);

}  // namespace stoch::cuda
