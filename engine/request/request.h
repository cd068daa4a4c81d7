// SPDX-License-Identifier: Apache-2.0
// What a request to an engine is, as plain values that need no engine to be made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/request/grammar.h"
#include "kernels/logit_queries.h"

namespace stoch {

// Biases that one request may have.
inline constexpr int64_t kMaxRequestBiases = 1024;

// How the next token of a request is picked.
struct SamplingOptions {
  double temperature = 0;        // 0 = greedy
  double top_p = 1;              // (0, 1]: smallest set of most likely tokens reaching this probability
  int64_t top_k = 0;             // 0 = all
  double min_p = 0;              // [0, 1]: tokens at least this times as likely as the most likely one
  double repeat_penalty = 1;     // > 0: divides positive, multiplies negative logits of tokens seen (prompt included)
  double presence_penalty = 0;   // subtracted once from tokens already generated
  double frequency_penalty = 0;  // subtracted per occurrence among generated tokens
  std::vector<LogitBias> logit_bias;  // added first; distinct ids, at most kMaxRequestBiases
  uint64_t seed = 0;
  uint64_t choice = 0;  // which of several answers to one prompt; another random stream of the same seed
};

// Checks the options as they are used: rounded to float where the arithmetic is in float.
// Errors: InvalidInput naming parameter, value and what is allowed.
void Validate(const SamplingOptions& options, int64_t vocab_size);

// Of one token, from the raw logits (before penalties and temperature), in double.
struct TokenLogprob {
  double logprob = 0;
  std::vector<std::pair<int32_t, double>> top;  // most likely first, ties to the lower id
};

enum class FinishReason : uint8_t {
  kNone,       // still running
  kStop,       // end-of-sequence token, stop id or stop string
  kLength,     // max_tokens or the context reached
  kCancelled,  // by the caller
};
std::string_view FinishReasonName(FinishReason reason);  // "", "stop", "length", "cancelled"

struct GenerateRequest {
  std::vector<int32_t> prompt;  // ids, BOS included where wanted; at least one, at most the context
  // Ids that an engine has generated for this request before, and lost: it goes on after them. Their number counts in
  // max_tokens.
  std::vector<int32_t> emitted;
  int64_t max_tokens = -1;  // -1 = up to the context
  SamplingOptions sampling;
  GrammarSpec grammar;            // that the answer is of, from its first token on
  std::vector<std::string> stop;  // for who makes text of the ids (engine/request/text_stream.h); engines read ids only
  std::vector<int32_t> stop_ids;  // as well as the model's end-of-sequence ids
  bool ignore_eos = false;        // the model's; stop_ids count all the same
  int top_logprobs = -1;          // -1 = no logprobs; n = of every token, with the n most likely alternatives
  bool prompt_logprobs = false;   // the same for prompt tokens (needs top_logprobs >= 0)
  bool hash_logits = false;
  // Keys and values of the prompt are shared with requests of the same salt alone. Bits are the same with any.
  std::string cache_salt;
  // Which faults it meets (Sequence::set_number). Keys and values are shared between equal numbers alone.
  uint32_t sequence_number = 0;
};

}  // namespace stoch
