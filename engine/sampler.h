// How the next token of a request is picked: its options, and what they become for one pick (kernels/logit_queries.h).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/logit_queries.h"

namespace stoch {

struct SamplingOptions {
  double temperature = 0;        // 0 = greedy
  double top_p = 1;              // (0, 1]: smallest set of most likely tokens reaching this probability
  int64_t top_k = 0;             // 0 = all
  double min_p = 0;              // [0, 1]: tokens at least this times as likely as the most likely one
  double repeat_penalty = 1;     // > 0: divides positive, multiplies negative logits of tokens seen (prompt included)
  double presence_penalty = 0;   // subtracted once from tokens already generated
  double frequency_penalty = 0;  // subtracted per occurrence among generated tokens
  std::vector<LogitBias> logit_bias;  // added first; distinct ids, at most kMaxLogitBiases
  uint64_t seed = 0;
  uint64_t choice = 0;  // which of several answers to one prompt; another random stream of the same seed
};

// Checks the options as they are used: rounded to float where the arithmetic is in float.
// Errors: InvalidInput naming parameter, value and what is allowed.
void Validate(const SamplingOptions& options, int64_t vocab_size);

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
