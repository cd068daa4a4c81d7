// SPDX-License-Identifier: Apache-2.0
// SC linears with a stream length for every row or (row, chunk), protected channels, integers or multiplier tables.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/linear/mixed_traits.h"
#include "kernels/plan/linear/plan.h"

namespace stoch {

// PlanLinear of one such weight. A route of steps (IsMixedStep) is that of the first launch; PlanMixedStep plans the
// launches of the other rows.
LinearPlan PlanMixedLinear(const GpuTraits& gpu, const MixedTraits& weight, const LinearShape& shape,
                           const LinearPass& pass);

// The plan of the next launch of a step, after `done` of the shape.tokens rows have been launched. It takes all
// `weights` and at most tile_tokens rows. Requires: the route of each weight on its own is one of steps.
LinearPlan PlanMixedStep(const GpuTraits& gpu, std::span<const MixedTraits> weights, const LinearShape& shape,
                         int64_t done, const LinearPass& pass);

// The route of a prompt. orders: traits of the operator of each group of lengths (LengthOrders); empty: the lengths
// make no groups.
LinearRoute PlanMixedPrompt(const GpuTraits& gpu, std::span<const ScTraits> orders, int64_t slots_per_row,
                            int64_t tokens);

// The route of rows that no kernel of steps or of prompts takes.
LinearRoute PlanMixedRows(const MixedTraits& weight, int64_t rows, const LinearPass& pass);

// How blocks of mixed/prepare.cu share rows.
struct PreparePlan {
  int ranks = 1;             // blocks of a row, a cluster if there are several
  int64_t rank_chunks = 0;   // chunks of a row that one block takes
  int64_t shared_bytes = 0;  // dynamic shared memory of a block
};
// needs_norm: a rule needs the norm of a whole row, which one block computes.
PreparePlan PlanPrepare(const GpuTraits& gpu, const ScDims& dims, int64_t tokens, bool needs_norm);

// LinearScratchBytes of such weights, without what the SC routes take that run rows of one length.
int64_t MixedScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, const LinearShape& shape);
// Bytes of scratch that a part of such a weight takes for `rows` rows of `cols` channels: codes, scales, metrics, slots
// and so on.
int64_t MixedPartBytes(const ScOperator& op, int64_t rows, int64_t cols);

// ---- Sizes of the kernels, which check them at compile time.
inline constexpr int64_t kMinMixedBatchTokens = 17;
inline constexpr int64_t kMaxMixedBatchTokens = 32;
inline constexpr int kPrepareWarps = 32;                   // warps of a block of mixed/prepare.cu
inline constexpr int64_t kMixedPrepareStaticBytes = 2180;  // static shared memory of mixed/prepare.cu, plus 1 KB
inline constexpr int64_t kRowGroupBytes = 152;

}  // namespace stoch
