// SC linears: who multiplies which shape.
//
// Bits: every kernel gives docs/sc_arithmetic.md#5-back-to-real-numbers exactly, so the choice is invisible.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/format/task.h"

namespace stoch::cuda {

// What: y = f(x) @ w^T for `count` weights of one operator that share f(x): quantizes f(x) and picks the kernel by
// shape.
void LaunchScLinear(DeviceContext& ctx, const ScOperator& op, const RowSource& source, int64_t rows, int64_t cols,
                    const FiniteReporter& reporter, const ScLinearTask* tasks, int count);

// What: bytes of ctx.workspace that LaunchScLinear takes at most for one matrix of `rows` rows.
// x has up to max_tokens rows.
int64_t ScLinearScratchBytes(const DeviceContext& ctx, const ScOperator& op, int64_t rows, int64_t cols,
                             int64_t max_tokens);

// What: any operator and shape, one product at a time from the 16-bit table (generic.cu).
void LaunchScGeneric(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScLinearTask* tasks,
                     int count);

}  // namespace stoch::cuda
