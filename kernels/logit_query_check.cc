// SPDX-License-Identifier: Apache-2.0
#include "kernels/logit_query_check.h"

#include <string>

#include "kernels/base/error.h"
#include "kernels/math/elementary.h"

namespace stoch {
namespace {

void Require(bool good, const std::string& what) {
  if (!good) throw InvalidInput("logit queries: " + what);
}

void RequireAtMost(const char* name, size_t count, int64_t limit) {
  Require(static_cast<int64_t>(count) <= limit,
          std::to_string(count) + " " + name + ", at most " + std::to_string(limit) + " are allowed");
}

void CheckPick(const TokenPick& pick, int64_t vocab_size, const std::string& name) {
  const auto check_id = [&](int32_t id) {
    Require(id >= 0 && id < vocab_size,
            name + " names token id " + std::to_string(id) + ", expected below " + std::to_string(vocab_size));
  };
  // Negated comparisons would let NaN pass.
  Require(pick.temperature >= 0 && IsFinite(pick.temperature), name + " has a temperature below 0 or not finite");
  Require(pick.top_k >= 0, name + " has a top_k below 0");
  Require(pick.top_p > 0 && pick.top_p <= 1, name + " has a top_p outside of (0, 1]");
  Require(pick.min_p >= 0 && pick.min_p <= 1, name + " has a min_p outside of [0, 1]");
  Require(pick.repeat_penalty > 0 && IsFinite(pick.repeat_penalty), name + " has a repeat_penalty of 0 or below");
  Require(IsFinite(pick.presence_penalty) && IsFinite(pick.frequency_penalty), name + " has a penalty not finite");
  for (const LogitBias& entry : pick.biases) {
    check_id(entry.id);
    Require(IsFinite(entry.bias), name + " has a bias not finite");
  }
  for (const TokenCount& entry : pick.counts) check_id(entry.id);
}

}  // namespace

void CheckLogitQueryLimits(const LogitQueryLimits& limits) {
  Require(limits.vocab_size >= 1 && limits.vocab_size < (int64_t{1} << 31) && limits.max_picks >= 1 &&
              limits.max_logprobs >= 1 && limits.max_entries >= 0,
          "limits of " + std::to_string(limits.vocab_size) + " tokens, " + std::to_string(limits.max_picks) +
              " picks, " + std::to_string(limits.max_logprobs) + " log-probabilities and " +
              std::to_string(limits.max_entries) + " entries");
}

int64_t CheckLogitQueries(const LogitQueries& queries, const LogitQueryLimits& limits) {
  RequireAtMost("picks", queries.picks.size(), limits.max_picks);
  RequireAtMost("log-probabilities", queries.logprobs.size(), limits.max_logprobs);
  size_t entries = 0;
  for (size_t i = 0; i < queries.picks.size(); ++i) {
    CheckPick(queries.picks[i], limits.vocab_size, "pick " + std::to_string(i));
    entries += queries.picks[i].biases.size() + queries.picks[i].counts.size();
  }
  RequireAtMost("biases and counts", entries, limits.max_entries);
  for (size_t i = 0; i < queries.logprobs.size(); ++i) {
    const LogProbQuery& query = queries.logprobs[i];
    const std::string name = "log-probability " + std::to_string(i);
    const bool has_token = query.id >= 0 && query.id < limits.vocab_size;
    const bool has_pick = query.id == -1 && query.pick >= 0 && query.pick < static_cast<int32_t>(queries.picks.size());
    Require(query.row < 0 || has_token || has_pick,
            name + " is of token id " + std::to_string(query.id) + " and pick " + std::to_string(query.pick));
    Require(query.top >= 0 && query.top <= kMaxTopLogProbs, name + " has " + std::to_string(query.top) +
                                                                " alternatives, at most " +
                                                                std::to_string(kMaxTopLogProbs) + " are allowed");
  }
  return static_cast<int64_t>(entries);
}

}  // namespace stoch
