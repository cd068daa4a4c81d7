// SPDX-License-Identifier: Apache-2.0
// SC linears of 2 to 16 tokens: one look-up in a table in shared memory serves one weight for all tokens, and tensor
// cores sum the entries.
//
// LaunchScBatchFew, 2 to 4 tokens a launch: an entry holds the counts of a weight's code, a byte a token, summed by
// int8 mma. LaunchScBatchTable, 5 to 16 tokens a launch: an entry holds four bits a token, the residuals of the counts
// that int8 products of small factors leave over, summed by binary mma, or by int8 mma where that is emulated.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/format/task.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

// y = a @ w^T (or y = y + a @ w^T) for `count` tasks that share the activations, one launch for every
// plan.tile_tokens tokens. If a.codes is null, blocks quantize f(x) of `source` themselves.
// Requires: a plan whose route is kScFew; at most plan.tile_tokens tokens if a.codes is not null.
// Bits:     docs/sc_arithmetic.md#5-back-to-real-numbers, as every SC linear.
void LaunchScBatchFew(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                      const RowSource& source, const SiteReporter& reporter, const ScLinearTask* tasks, int count);

// As LaunchScBatchFew. Requires: a plan whose route is kScTable.
void LaunchScBatchTable(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                        const RowSource& source, const SiteReporter& reporter, const ScLinearTask* tasks, int count);

// The device tables of one stream length, from which blocks build their tables in shared memory.
struct LookupTable {
  const CountQuarter* quarters = nullptr;  // LaunchScBatchFewMixed: counts, as ScTables::quarters
  const uint32_t* factors = nullptr;       // LaunchScBatchTableMixed: as ScTables::factors
  const uint32_t* residuals = nullptr;     // LaunchScBatchTableMixed: as ScTables::residuals
  float gain = 0.0f;                       // real value of one count
  uint16_t mask_bits = 0;                  // number of masks - 1
  bool pruned = false;  // true: length 0; codes are read as 0, the other members belong to some other length
};
// The stream lengths of a call: a table for each slot, and the slot of every token or (token, chunk).
struct LookupLengths {
  LookupTable tables[kMaxLookupLengths];  // [slots] tables of each length
  RowSlots slots;
};

// LaunchScBatchFew and LaunchScBatchTable for tokens, or (token, chunk) pairs, with stream lengths of their own.
// `tables` are those of the longest length.
// Requires: codes in `a`; for every slot that occurs, tables with quarters (Few), or with factors and residuals
//           (Table).
void LaunchScBatchFewMixed(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables,
                           const LookupLengths& lengths, const ScActivationView& a, const SiteReporter& reporter,
                           const ScLinearTask* tasks, int count);
void LaunchScBatchTableMixed(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables,
                             const LookupLengths& lengths, const ScActivationView& a, const SiteReporter& reporter,
                             const ScLinearTask* tasks, int count);

}  // namespace stoch::cuda
