// SPDX-License-Identifier: Apache-2.0
// SC linears of 2 to 16 tokens, between decode's few tokens and the tiles of the tensor cores: a table look-up gives
// one weight's counts (LaunchScBatchFew: 2 to 4 tokens a launch, int8 products alone), or the rest that int8 products leave of
// them (LaunchScBatchTable: 5 to 16, with binary products), for all tokens, and the tensor cores add up the entries.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/format/task.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

// y = a @ w^T (or y = y + that) for tasks that share the quantized activations. Where `a` has no codes, it is f(x) of
// `source`, quantized on the way.
// Requires: the plan of these launches, one for every kMaxBatchFewTokens tokens, whose route is kScFew; codes in `a` of one
//           launch alone.
// Bits:     docs/sc_arithmetic.md#5-back-to-real-numbers, as every SC linear.
void LaunchScBatchFew(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                      const RowSource& source, const SiteReporter& reporter, const ScLinearTask* tasks, int count);

// For more tokens. Requires: the plan's route is kScTable.
void LaunchScBatchTable(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                        const RowSource& source, const SiteReporter& reporter, const ScLinearTask* tasks, int count);

// Tables that a (token, chunk) of one stream length looks up in.
struct LookupTable {
  const CountQuarter* quarters = nullptr;  // ScTables, of LaunchScBatchFew
  const uint32_t* factors = nullptr;       // of LaunchScBatchTable
  const uint32_t* residuals = nullptr;
  float gain = 0.0f;
  uint16_t mask_bits = 0;  // masks - 1
  bool pruned = false;     // length 0: the others are those of some length, codes count as 0
};
struct LookupLengths {
  LookupTable tables[kMaxLookupLengths];  // by slot
  RowSlots slots;
};

// Both for tokens, or (token, chunk)s, with lengths of their own; `tables` are the longest's.
// Requires: codes in `a`; quarters, or factors and residuals, in every table of a slot that occurs.
void LaunchScBatchFewMixed(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables,
                           const LookupLengths& lengths, const ScActivationView& a, const SiteReporter& reporter,
                           const ScLinearTask* tasks, int count);
void LaunchScBatchTableMixed(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables,
                             const LookupLengths& lengths, const ScActivationView& a, const SiteReporter& reporter,
                             const ScLinearTask* tasks, int count);

}  // namespace stoch::cuda
