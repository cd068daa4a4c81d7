// SPDX-License-Identifier: Apache-2.0
// How the next token of a request is picked: what its options become for one pick (kernels/logit_queries.h).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/request/request.h"
#include "kernels/logit_queries.h"

namespace stoch {

// The tokens of a sequence and how often each was generated, for penalties; kept, not counted again for every token.
class TokenCounts {
 public:
  void AddPrompt(std::span<const int32_t> ids);
  void AddGenerated(int32_t id);
  std::span<const TokenCount> entries() const { return entries_; }

 private:
  TokenCount& EntryOf(int32_t id);

  std::vector<TokenCount> entries_;
  std::unordered_map<int32_t, size_t> index_;
};

// Whether picks read token counts.
bool HasPenalties(const SamplingOptions& options);

// The pick of the token at absolute position `position`: the draw is a function of (seed, choice, position), so the
// same call gives the same token everywhere. The result refers to the options' biases and to `counts`.
// Requires: validated options.
TokenPick MakePick(const SamplingOptions& options, std::span<const TokenCount> counts, int64_t position);

}  // namespace stoch
