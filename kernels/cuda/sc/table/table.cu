// SPDX-License-Identifier: Apache-2.0
// SC linears of 5 to 16 tokens: one look-up per weight for all tokens, summed by tensor cores.
//
// A count is a sum of three products of small integers and a residual of 0..7 (kernels/sc/sc_residual.h;
// docs/fast-kernels.md#a-few-tokens-one-lookup-for-all-of-them). The tensor cores compute the products as int8 mma. The
// residuals, four bits a token, are looked up: shared memory has a table for a part of a chunk, with an entry for every
// code of every dimension. Entries are operand A of a binary mma whose operand B selects the bits of each token. That
// mma runs twice, because three of the four bits count double. GPUs that emulate binary products take two int8 ones
// (Geometry::kInt8): a byte has the residuals of two tokens as numbers, and the sum of the bytes less that of their
// upper halves is the sum of the lower ones.
//
// Bound by shared memory, 128 bytes a clock: one clock for 32 weights of 8 tokens.
// Alternatives that lost: docs/tuning/batch.md#2-to-16-tokens.
#include "kernels/cuda/sc/table/residual_lookups.cuh"

namespace stoch::cuda {

void LaunchScBatchTable(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                        const RowSource& source, const SiteReporter& reporter, const ScLinearTask* tasks, int count) {
  using namespace batch_table;  // NOLINT(google-build-using-namespace): of this file
  const auto launch = plan.sums == BitProducts::kInt8 ? Int8TableLaunch(plan) : TableLaunch<false, false>(plan);
  launch(ctx, plan, tables, a, source, reporter, tasks, count);
}

void LaunchScBatchTableMixed(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables,
                             const LookupLengths& lengths, const ScActivationView& a, const SiteReporter& reporter,
                             const ScLinearTask* tasks, int count) {
  using namespace batch_table;  // NOLINT(google-build-using-namespace): of this file
  const auto launch = plan.sums == BitProducts::kInt8 ? Int8MixedTableLaunch(plan) : TableLaunch<true, false>(plan);
  launch(ctx, plan, tables, lengths, a, reporter, tasks, count);
}

}  // namespace stoch::cuda
