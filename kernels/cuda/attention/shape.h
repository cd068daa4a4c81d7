// SPDX-License-Identifier: Apache-2.0
// A call of attention as its plans and its kernels take it, on one device, and the kernels of dilated calls.
#pragma once

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/kv_cache.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/plan/attention_plan.h"

namespace stoch::cuda {

// As MakeAttentionShape, with the operators' traits that are kept with their tables. num_kv_heads: of the call, which
// may read some of the cache's.
AttentionShape ShapeOf(DeviceContext& ctx, const CudaKvCache& cache, int layer, int num_heads, int num_kv_heads);

// What kernels read of a call whose rows are those of `pass`. Requires: a call that was checked.
AttentionArgs ArgsOf(DeviceContext& ctx, const AttentionCall& call, const CudaKvCache& cache, const PassView& pass);

// As AttendCodes (kernels.h) where pairs say what a row sees: every row through one kernel, whatever the pass.
void AttendDilated(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
                   const ScTables& av, const QueryCodes& q, const DilatedPairs& pairs, const RowSet& rows,
                   const AttentionLimits& limits);

}  // namespace stoch::cuda
