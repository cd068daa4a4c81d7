// SPDX-License-Identifier: Apache-2.0
// SC linears of 17 to 256 tokens (sm_90a) on binary wgmma, in narrow tiles. Operands are those of prefill.h, whose wide
// tiles fill the GPU only for more tokens.
#pragma once

#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/format/task.h"
#include "kernels/cuda/sc/tensor_core/streams.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

// y = a @ w^T (or y = y + a @ w^T) for `count` tasks that share the quantized activations. Any number of rows and
// dimensions, any chunk_d.
// rows: the stream lengths if each of kMinMixedBatchTokens to kMaxMixedBatchTokens tokens has its own; `tables` are
// then those of the longest length. Null: all tokens have the length of `tables`.
// Requires: the plan of this call, whose route is kScBatch; with `rows`, tables of 128 cycles with direct_ranks.
// Scratch:  the bytes of the plan and, with `rows`, the gains of kMaxMixedBatchTokens tokens in addition.
// Bits:     docs/sc_arithmetic.md#5-back-to-real-numbers, as every SC linear.
void LaunchScBatchWgmma(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                        const SiteReporter& reporter, const ScLinearTask* tasks, int count,
                        const RowStreams* rows = nullptr);

}  // namespace stoch::cuda
