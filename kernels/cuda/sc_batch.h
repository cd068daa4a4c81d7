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

inline constexpr int kMaxBatchTasks = kMaxScTasks;

// What:     y = a @ w^T (or y = y + that) for tasks that share the quantized activations. Where `a` has no codes, it is
//           f(x) of `source`, quantized on the way.
// Requires: the plan of this launch, whose kernel is kFew; BatchQuantizes where `a` has no codes.
// Bits:     sc_arithmetic section 5, as every SC linear.
void LaunchScBatchFew(DeviceContext& ctx, const ScPlan& plan, const ScTables& tables, const ScActivationView& a,
                      const RowSource& source, const FiniteReporter& reporter, const ScLinearTask* tasks, int count);

// What: the same for more tokens. Requires: the plan's kernel is kTable.
void LaunchScBatchTable(DeviceContext& ctx, const ScPlan& plan, const ScTables& tables, const ScActivationView& a,
                        const RowSource& source, const FiniteReporter& reporter, const ScLinearTask* tasks, int count);

// What: the same on binary wgmma. Requires: the plan's kernel is kBatchWgmma. Shapes: any number of rows and
// dimensions,
//       any chunk_d.
void LaunchScBatchWgmma(DeviceContext& ctx, const ScPlan& plan, const ScTables& tables, const ScActivationView& a,
                        const FiniteReporter& reporter, const ScLinearTask* tasks, int count);

}  // namespace stoch::cuda
