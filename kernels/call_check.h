// SPDX-License-Identifier: Apache-2.0
// What every backend checks of an op before any work, in one wording:
// "layer 3 q_proj: x is F32[2, 3] on cpu:0, expected F32[any, 64] with dense rows on cpu:0".
//
// Errors: InvalidInput from every function here, naming the site and the operand. That a device belongs to the backend
//         is the backend's own to check.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "kernels/backend.h"
#include "kernels/stripes.h"

namespace stoch {

inline constexpr int64_t kAnySize = -1;

// "layer 3 q_proj", "embed".
std::string SiteName(const OpSite& site);

// InvalidInput "SITE: PROBLEM".
[[noreturn]] void Reject(const OpSite& site, const std::string& problem);

// The view is on `device`, of `dtype` and of this shape (kAnySize matches all), has memory unless it is empty, and its
// rows are dense.
void RequireView(const OpSite& site, std::string_view name, const TensorView& view, const Device& device, DType dtype,
                 std::initializer_list<int64_t> shape);

// Every element of the view is where a copy of numel() elements finds it.
void RequireDense(const OpSite& site, const TensorView& view);

// An output shares no byte with another operand, nor with itself (a stride of 0).
void RequireDisjoint(const OpSite& site, const TensorView& out, const TensorView& other);

// Dense views of equal byte size.
void CheckCopy(const TensorView& to, const TensorView& from);

// Rows, sequences and pages of at least 1.
void CheckPassLimits(const PassLimits& limits);
// At least one row; within the limits; sequences cover every row once, in order; output rows are rows; no page below 0.
void CheckPass(const PassLayout& layout, const PassLimits& limits);

// Everything that LinearCall requires, on the device of the first weight.
void CheckLinear(const LinearCall& call);

// Everything that AttentionCall requires but its sequences, on the device of the cache. `tokens`: rows of the pass.
// Requires: a cache and a pass.
void CheckAttention(const AttentionCall& call, int64_t tokens);
// As above, without a check of stripes.
void CheckAttentionOperands(const AttentionCall& call, int64_t tokens);
// A cache and a pass are there. Before anything is read of them.
void CheckAttentionHandles(const AttentionCall& call);
// A sequence of the pass ends before position `end` and has `num_pages` pages: within the pages, the rope table of a
// stripe's positions, and what 32-bit sums hold.
void CheckAttentionSequence(const AttentionCall& call, int64_t end, int64_t num_pages, const Stripe& stripe = {});
// A page of the pass is one of the cache.
void CheckAttentionPage(const AttentionCall& call, int64_t page);

// `tokens`: rows of the pass; `output_rows`: of its rows, those whose logits are wanted.
void CheckEmbed(const EmbeddingTable& table, const Pass& pass, int64_t tokens, const TensorView& out);
void CheckSelectRows(const Pass& pass, int64_t tokens, int64_t output_rows, const TensorView& x, const TensorView& out);

void CheckArgmax(const TensorView& logits, const TensorView& ids);

// Everything that CompareLogitsCall requires, on the device of its logits.
void CheckCompareLogits(const CompareLogitsCall& call);

// Logits of `vocab_size` columns on the buffer's device, and a range within [0, limit).
void CheckLogitRows(const OpSite& site, const LogitRows& logits, const LogitQueryBuffer& buffer, int64_t vocab_size,
                    const QueryRange& range, int64_t limit);

// Everything that Backend::ScMatmul requires.
void CheckScMatmul(const TensorView& a, const TensorView& b, const ScOperator& op, const TensorView& out);
// Everything that Backend::ScMixedMatmul requires but its extras.
void CheckScMixedMatmul(const TensorView& a, const TensorView& b, const ScOperator& op, const ScExtras& extras,
                        std::span<const int> lengths, const TensorView& out);

}  // namespace stoch
