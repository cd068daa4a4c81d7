// SPDX-License-Identifier: Apache-2.0
// What a caller wants to know of rows of logits: the next token, and log-probabilities. Answered on the device, so that
// the host never reads a row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/device.h"

namespace stoch {

// Added to the logit of a token before anything else.
struct LogitBias {
  int32_t id = 0;
  float bias = 0;
};

// A token that occurs in the sequence so far, and how often outside of the prompt.
struct TokenCount {
  int32_t id = 0;
  int32_t generated = 0;
};

// Words of 32 bits that hold one bit for each token.
constexpr int64_t TokenMaskWords(int64_t vocab_size) { return (vocab_size + 31) / 32; }

// The token that follows row `row` of the logits. In this order: bias, penalties, mask, temperature, top_k, top_p, min_p,
// draw (kernels/math/sampling.h). Candidates rank by (logit descending, id ascending).
struct TokenPick {
  int32_t row = 0;
  float temperature = 0;  // 0: the first of the ranking, without a draw
  int32_t top_k = 0;      // the k first; 0: all
  double top_p = 1;       // the fewest first ones that have this share of the weight together
  double min_p = 0;       // those with at least this share of the first one's weight
  float repeat_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t random = 0;                 // random number of this draw
  std::span<const LogitBias> biases;   // distinct ids
  std::span<const TokenCount> counts;  // distinct ids; read where a penalty is set
  // Tokens that may be picked: bit id % 32 of word id / 32, TokenMaskWords(vocab_size) words. The others rank last and weigh
  // nothing (DisallowedLogit). Empty: all. Requires: one of them at least.
  std::span<const uint32_t> allowed;
};

// Most alternatives that a LogProbQuery may ask for.
inline constexpr int kMaxTopLogProbs = 20;

// The log-probability, from the raw logits of row `row`, of a given token or of the one that was picked.
struct LogProbQuery {
  int32_t row = 0;
  int32_t id = -1;    // the token, or -1:
  int32_t pick = -1;  // the index of its pick
  int32_t top = 0;    // how many of the most likely tokens besides, at most kMaxTopLogProbs
};

struct LogitQueries {
  std::vector<TokenPick> picks;
  std::vector<LogProbQuery> logprobs;
  // Whether the host may want the logits themselves. Where not, and they are asked for nevertheless, the head may run again.
  bool wants_logits = true;
};

// Bits: m = largest logit, s = sum of Exp(logit - m) in kRowLanes order; then double: (logit - m) - Log(s).
struct LogProbAnswer {
  double logprob = 0;
  int32_t id = 0;   // id of the token
  int32_t top = 0;  // how many of the following are set, ranked
  int32_t top_ids[kMaxTopLogProbs] = {};
  double top_logprobs[kMaxTopLogProbs] = {};
};

struct LogitQueryLimits {
  int64_t vocab_size = 0;
  int64_t max_picks = 0;
  int64_t max_logprobs = 0;
  int64_t max_entries = 0;  // biases and counts of all picks together
};

// Queries and answers on one device, with room for the limits; reused by every pass.
class LogitQueryBuffer {
 public:
  virtual ~LogitQueryBuffer() = default;
  virtual Device device() const = 0;
  virtual int64_t bytes() const = 0;  // bytes of device memory
  // The answers, as many as there are queries. Requires: the caller has waited for the ops that give them.
  // A picked id is -1 where the adjusted logits are not all finite.
  virtual std::span<const int32_t> picked() const = 0;
  virtual std::span<const LogProbAnswer> logprobs() const = 0;
};

}  // namespace stoch
