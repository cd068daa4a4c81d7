// SPDX-License-Identifier: Apache-2.0
// SC linears of 17 to 256 tokens (sm_90a): the operands of prefill on binary wgmma, in narrow tiles. More tokens make
// enough of prefill's wide tiles to fill the GPU.
#pragma once

#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/format/task.h"
#include "kernels/cuda/sc/tensor_core/streams.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

// y = a @ w^T (or y = y + that) for tasks that share the quantized activations. Shapes: any number of tokens and
// dimensions, any chunk_d.
// rows: of kMinMixedBatchTokens to kMaxMixedBatchTokens tokens with lengths of their own, `tables` being the longest's; null: of one.
// Requires: the plan of this launch, whose route is kScBatch; with `rows`, DirectRanks of 128 cycles.
// Scratch:  with `rows`, gains of kMaxMixedBatchTokens tokens more than the plan's.
// Bits:     docs/sc_arithmetic.md#5-back-to-real-numbers, as every SC linear.
void LaunchScBatchWgmma(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                        const SiteReporter& reporter, const ScLinearTask* tasks, int count,
                        const RowStreams* rows = nullptr);

}  // namespace stoch::cuda
