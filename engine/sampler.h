// Picks the next token from a row of logits; a pure function of logits, history, options and position.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace stoch {

struct SamplingOptions {
  double temperature = 0;        // 0 = greedy
  double top_p = 1;              // (0, 1]: smallest set of most likely tokens reaching this probability
  int64_t top_k = 0;             // 0 = all
  double min_p = 0;              // [0, 1]: tokens at least this times as likely as the most likely one
  double repeat_penalty = 1;     // > 0: divides positive, multiplies negative logits of tokens seen (prompt included)
  double presence_penalty = 0;   // subtracted once from tokens already generated
  double frequency_penalty = 0;  // subtracted per occurrence among generated tokens
  std::vector<std::pair<int32_t, float>> logit_bias;  // added first
  uint64_t seed = 0;
  uint64_t choice = 0;  // which of several answers to one prompt; another random stream of the same seed
};

// Errors: InvalidInput naming parameter, value and what is allowed.
void Validate(const SamplingOptions& options, int64_t vocab_size);

// True if the pick is the plain argmax of the logits: greedy without penalties or bias.
bool IsPlainGreedy(const SamplingOptions& options);

// What:   the next token. Order: bias, repeat, presence and frequency penalties, temperature, top_k, top_p, min_p,
// draw.
//         Candidates are ranked by (logit descending, id ascending); the draw is one uniform number of (seed, choice,
//         position), so the same call gives the same token everywhere.
// Shapes: logits [vocab_size], not changed; history = prompt and generated ids, the first `prompt_tokens` the prompt.
// Units:  position = absolute position of the token being picked.
int32_t Sample(std::span<const float> logits, std::span<const int32_t> history, int64_t prompt_tokens, int64_t position,
               const SamplingOptions& options);

}  // namespace stoch
