// SPDX-License-Identifier: Apache-2.0
// SC linears with a stream length for every row or (row, chunk), protected channels, integers or multiplier tables.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/linear/mixed_traits.h"
#include "kernels/plan/linear/plan.h"

namespace stoch {

// PlanLinear of one such weight. Routes of steps (IsMixedStep) are those of the first rows, the rest has plans of its own.
LinearPlan PlanMixedLinear(const GpuTraits& gpu, const MixedTraits& weight, const LinearShape& shape,
                           const LinearPass& pass);

// The next launch of a step, once `done` of shape.tokens rows are: its route takes every one of `weights`, and
// tile_tokens of the rows at most. Requires: weights whose own routes are those of steps.
LinearPlan PlanMixedStep(const GpuTraits& gpu, std::span<const MixedTraits> weights, const LinearShape& shape,
                         int64_t done, const LinearPass& pass);

// The route of a prompt of weights whose lengths make groups with these orders (LengthOrders; none: they make none).
LinearRoute PlanMixedPrompt(const GpuTraits& gpu, std::span<const ScTraits> orders, int64_t slots_per_row,
                            int64_t tokens);

// The route of rows that no kernel of steps or of prompts takes.
LinearRoute PlanMixedRows(const MixedTraits& weight, int64_t rows, const LinearPass& pass);

// LinearScratchBytes of such weights, at most, but for the SC routes of rows of one length.
int64_t MixedScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, const LinearShape& shape);
// Codes, scales and what else a part of such a weight takes of so many rows of `cols` channels.
int64_t MixedPartBytes(const ScOperator& op, int64_t rows, int64_t cols);

// ---- Sizes of the kernels, which check them where they are compiled.
inline constexpr int64_t kMinMixedBatchTokens = 17;
inline constexpr int64_t kMaxMixedBatchTokens = 32;
inline constexpr int64_t kMixedPrepareStaticBytes = 2180;  // of mixed/prepare.cu
inline constexpr int64_t kRowGroupBytes = 152;

}  // namespace stoch
