// SC linears of small batches, between decode's few tokens and prefill's full tiles.
//
// 2 to 4 tokens (LaunchScBatchFew), 5 to 16 tokens (LaunchScBatchTable): a table look-up gives one weight's counts, or
// what is left over of them, for all tokens, and the tensor cores add up what was looked up. 17 to 256 tokens
// (LaunchScBatchWgmma, sm_90a): the operands of prefill on binary wgmma, in narrow tiles. More of them make enough of
// prefill's wide tiles to fill the GPU.
#pragma once

#include "kernels/cuda/activations.h"
#include "kernels/cuda/sc_linear.h"

namespace stoch::cuda {

// What:     LaunchQuantize for few rows whose scopes are single rows: a warp a chunk, so that the latency of one chunk,
//           not that of a row, stands before every linear.
// Requires: BatchQuantizes(op, dims).
bool BatchQuantizes(const ScOperator& op, const ScDims& dims);
ScActivationView LaunchBatchQuantize(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t rows,
                                     int64_t cols, const ScOperator& op, const FiniteReporter& reporter);

inline constexpr int kMaxBatchFewTokens = 4;
inline constexpr int kMaxBatchTableTokens = 16;
inline constexpr int kMaxBatchTasks = 4;

// What: whether LaunchScBatchFew takes this operator and shape.
bool ScBatchFewSupports(const DeviceContext& ctx, const ScOperator& op, const ScTables& tables, const ScDims& dims,
                        int64_t rows);

// What:     y = a @ w^T (or y = y + that) for tasks that share the quantized activations. Where `a` has no codes, it is
//           f(x) of `source`, quantized on the way.
// Requires: ScBatchFewSupports; 1 <= count <= kMaxBatchTasks; BatchQuantizes where `a` has no codes.
// Bits:     docs/sc_arithmetic.md#5-back-to-real-numbers, as every SC linear.
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

inline constexpr int kMaxBatchWgmmaTokens = 256;

// What: whether LaunchScBatchWgmma takes this operator and number of tokens.
bool ScBatchWgmmaSupports(const DeviceContext& ctx, const ScOperator& op, int64_t rows);

// What: bytes of ctx.workspace that LaunchScBatchWgmma takes for one matrix of `rows` rows.
int64_t ScBatchWgmmaScratchBytes(const DeviceContext& ctx, const ScOperator& op, const ScDims& dims, int64_t tokens,
                                 int64_t rows);

// What:     the same on binary wgmma. Shapes: any number of rows and dimensions, any chunk_d.
// Requires: ScBatchWgmmaSupports of the operator whose tables these are.
void LaunchScBatchWgmma(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a,
                        const FiniteReporter& reporter, const ScLinearTask* tasks, int count);

}  // namespace stoch::cuda
