// SC linears of 17 to 256 tokens (sm_90a): the operands of prefill on binary wgmma, in narrow tiles. More tokens make
// enough of prefill's wide tiles to fill the GPU.
#pragma once

#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/format/task.h"

namespace stoch::cuda {

inline constexpr int kMaxBatchWgmmaTokens = 256;

// What: whether LaunchScBatchWgmma takes this operator and number of tokens.
bool ScBatchWgmmaSupports(const DeviceContext& ctx, const ScOperator& op, int64_t rows);

// What: bytes of ctx.workspace that LaunchScBatchWgmma takes for one matrix of `rows` rows.
int64_t ScBatchWgmmaScratchBytes(const DeviceContext& ctx, const ScOperator& op, const ScDims& dims, int64_t tokens,
                                 int64_t rows);

// What:     y = a @ w^T (or y = y + that) for tasks that share the quantized activations. Shapes: any number of rows
// and
//           dimensions, any chunk_d.
// Requires: ScBatchWgmmaSupports of the operator whose tables these are; 1 <= count <= kMaxBatchTasks.
// Bits:     sc_arithmetic section 5, as every SC linear.
void LaunchScBatchWgmma(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a,
                        const FiniteReporter& reporter, const ScLinearTask* tasks, int count);

}  // namespace stoch::cuda
