// SPDX-License-Identifier: Apache-2.0
// The sizes of the passes of a model.
#pragma once

#include <algorithm>
#include <cstdint>

namespace stoch {

// The sizes that a plan and an engine share.
struct PassShape {
  int64_t context = 0;         // positions of one sequence
  int64_t kv_tokens = 0;       // positions of all sequences together
  int64_t max_rows = 0;        // rows of one pass
  int64_t max_logit_rows = 0;  // rows of logits held at once
  int64_t lanes = 1;           // passes in flight at once
  int64_t max_sequences = 1;   // sequences of one pass
  int64_t draft_tokens = 0;    // that a pass checks at most
  int64_t base_rows = 0;       // rows of base logits next to them, which the caller of CompareLogits allocates
};

// Tokens that one pass picks.
constexpr int64_t MaxPicks(const PassShape& shape) { return std::max(shape.max_sequences, 1 + shape.draft_tokens); }

inline constexpr int kKvPageTokens = 64;

// Pages that hold so many positions, and as many positions as whole pages have.
constexpr int64_t PagesOf(int64_t tokens) { return (tokens + kKvPageTokens - 1) / kKvPageTokens; }
constexpr int64_t RoundUpToPages(int64_t tokens) { return PagesOf(tokens) * kKvPageTokens; }

// Pages that hold shape.kv_tokens positions.
inline int64_t NumPages(const PassShape& shape) { return PagesOf(shape.kv_tokens); }

}  // namespace stoch
