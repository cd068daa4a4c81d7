// SPDX-License-Identifier: Apache-2.0
#include "kernels/logit_query_check.h"

#include <string>

#include "kernels/base/error.h"
#include "kernels/math/elementary.h"

namespace stoch {
namespace {

// `what` makes the words of an error: queries come by thousands, and words are rarely wanted.
template <typename What>
void Require(bool good, const What& what) {
  if (good) return;
  const std::string words = what();
  throw InvalidInput("logit queries: " + words);
}

void RequireAtMost(const char* name, size_t count, int64_t limit) {
  Require(static_cast<int64_t>(count) <= limit,
          [&] { return std::to_string(count) + " " + name + ", at most " + std::to_string(limit) + " are allowed"; });
}

void CheckPick(const TokenPick& pick, int64_t vocab_size, size_t index) {
  const auto require = [index](bool good, const char* what) {
    Require(good, [&] { return "pick " + std::to_string(index) + " has " + what; });
  };
  const auto check_id = [&](int32_t id) {
    Require(id >= 0 && id < vocab_size, [&] {
      return "pick " + std::to_string(index) + " names token id " + std::to_string(id) + ", expected below " +
             std::to_string(vocab_size);
    });
  };
  // Negated comparisons would let NaN pass.
  require(pick.temperature >= 0 && IsFinite(pick.temperature), "a temperature below 0 or not finite");
  require(pick.top_k >= 0, "a top_k below 0");
  require(pick.top_p > 0 && pick.top_p <= 1, "a top_p outside of (0, 1]");
  require(pick.min_p >= 0 && pick.min_p <= 1, "a min_p outside of [0, 1]");
  require(pick.repeat_penalty > 0 && IsFinite(pick.repeat_penalty), "a repeat_penalty of 0 or below");
  require(IsFinite(pick.presence_penalty) && IsFinite(pick.frequency_penalty), "a penalty not finite");
  for (const LogitBias& entry : pick.biases) {
    check_id(entry.id);
    require(IsFinite(entry.bias), "a bias not finite");
  }
  for (const TokenCount& entry : pick.counts) check_id(entry.id);
  if (pick.allowed.empty()) return;
  require(static_cast<int64_t>(pick.allowed.size()) == TokenMaskWords(vocab_size), "a mask of another vocabulary");
  bool any = false;
  for (size_t word = 0; word + 1 < pick.allowed.size(); ++word) any = any || pick.allowed[word] != 0;
  const uint32_t last = pick.allowed.back() << (31 - (vocab_size - 1) % 32);  // bits beyond the vocabulary are not read
  require(any || last != 0, "no token that is allowed");
}

}  // namespace

void CheckLogitQueryLimits(const LogitQueryLimits& limits) {
  const bool good = limits.vocab_size >= 1 && limits.vocab_size < (int64_t{1} << 31) && limits.max_picks >= 1 &&
                    limits.max_logprobs >= 1 && limits.max_entries >= 0;
  Require(good, [&] {
    return "limits of " + std::to_string(limits.vocab_size) + " tokens, " + std::to_string(limits.max_picks) +
           " picks, " + std::to_string(limits.max_logprobs) + " log-probabilities and " +
           std::to_string(limits.max_entries) + " entries";
  });
}

int64_t CheckLogitQueries(const LogitQueries& queries, const LogitQueryLimits& limits) {
  RequireAtMost("picks", queries.picks.size(), limits.max_picks);
  RequireAtMost("log-probabilities", queries.logprobs.size(), limits.max_logprobs);
  size_t entries = 0;
  for (size_t i = 0; i < queries.picks.size(); ++i) {
    CheckPick(queries.picks[i], limits.vocab_size, i);
    entries += queries.picks[i].biases.size() + queries.picks[i].counts.size();
  }
  RequireAtMost("biases and counts", entries, limits.max_entries);
  for (size_t i = 0; i < queries.logprobs.size(); ++i) {
    const LogProbQuery& query = queries.logprobs[i];
    const auto name = [i] { return "log-probability " + std::to_string(i); };
    const bool has_token = query.id >= 0 && query.id < limits.vocab_size;
    const bool has_pick = query.id == -1 && query.pick >= 0 && query.pick < static_cast<int32_t>(queries.picks.size());
    Require(query.row < 0 || has_token || has_pick, [&] {
      return name() + " is of token id " + std::to_string(query.id) + " and pick " + std::to_string(query.pick);
    });
    Require(query.top >= 0 && query.top <= kMaxTopLogProbs, [&] {
      return name() + " has " + std::to_string(query.top) + " alternatives, at most " +
             std::to_string(kMaxTopLogProbs) + " are allowed";
    });
  }
  return static_cast<int64_t>(entries);
}

}  // namespace stoch
