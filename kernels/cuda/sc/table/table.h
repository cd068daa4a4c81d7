// SC linears of 2 to 16 tokens, between decode's few tokens and the tiles of the tensor cores: a table look-up gives
// one weight's counts (2 to 4 tokens, LaunchScBatchFew), or what is left over of them (5 to 16, LaunchScBatchTable),
// for all tokens, and the tensor cores add up what was looked up.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/format/task.h"

namespace stoch::cuda {

inline constexpr int kMaxBatchFewTokens = 4;
inline constexpr int kMaxBatchTableTokens = 16;

// What: whether LaunchScBatchFew takes this operator and shape.
bool ScBatchFewSupports(const DeviceContext& ctx, const ScOperator& op, const ScTables& tables, const ScDims& dims,
                        int64_t rows);

// What:     y = a @ w^T (or y = y + that) for tasks that share the quantized activations. Where `a` has no codes, it is
//           f(x) of `source`, quantized on the way.
// Requires: ScBatchFewSupports; 1 <= count <= kMaxBatchTasks; BatchQuantizes where `a` has no codes.
// Bits:     sc_arithmetic section 5, as every SC linear.
void LaunchScBatchFew(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const RowSource& source,
                      const FiniteReporter& reporter, const ScLinearTask* tasks, int count);

// What: whether LaunchScBatchTable takes this operator and shape.
bool ScBatchTableSupports(const DeviceContext& ctx, const ScOperator& op, const ScTables& tables, const ScDims& dims,
                          int64_t rows);

// What:     the same for more tokens.
// Requires: ScBatchTableSupports; 1 <= count <= kMaxBatchTasks.
void LaunchScBatchTable(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const RowSource& source,
                        const FiniteReporter& reporter, const ScLinearTask* tasks, int count);

// What: bytes of ctx.workspace that LaunchScBatchFew and LaunchScBatchTable take at most for one matrix of `rows` rows.
int64_t ScBatchTableScratchBytes(const ScDims& dims, int64_t tokens, int64_t rows);

}  // namespace stoch::cuda
