// SPDX-License-Identifier: Apache-2.0
#include "engine/speculation/guess_plan.h"

#include <algorithm>
#include <numeric>

namespace stoch {
namespace {

constexpr double kLearningRate = 0.1;  // the last twenty guesses count
constexpr int64_t kDoubt = 2;          // guesses that the probability itself counts for, before any was seen
constexpr double kLeastGain = 1.03;    // as of ChooseDraftLengths
constexpr double kLeastAccepted = 0.2;
constexpr std::array<int64_t, 4> kGuesses = {1, 3, 7, 15};

// Passes with so many guesses for each of the first `chosen` candidates of `order`.
class Tried {
 public:
  Tried(std::span<const GuessCandidate> candidates, std::span<const size_t> chosen, int64_t most)
      : guesses_(candidates.size(), 0) {
    for (const size_t i : chosen) {
      const GuessCandidate& candidate = candidates[i];
      const int64_t count = std::min(most, candidate.most);
      if (count <= 0) continue;
      guesses_[i] = count;
      rows_ += count;
      behind_ += candidate.behind;
      double all_right = 1;
      for (int64_t guess = 0; guess < count; ++guess) tokens_ += (all_right *= candidate.accepted);
    }
  }
  int64_t rows() const { return rows_; }
  double tokens() const { return tokens_; }
  // Of the passes of the draft model: what it has yet to see, then a row for each that needs another guess.
  double DraftMs(const std::function<double(int64_t)>& draft_ms) const {
    double ms = draft_ms(behind_);
    for (int64_t guess = 2;; ++guess) {
      const auto more = std::count_if(guesses_.begin(), guesses_.end(), [=](int64_t each) { return each >= guess; });
      if (more == 0) return ms;
      ms += draft_ms(more);
    }
  }
  std::vector<int64_t> TakeGuesses() { return std::move(guesses_); }

 private:
  std::vector<int64_t> guesses_;
  int64_t rows_ = 0;
  int64_t behind_ = 0;
  double tokens_ = 0;  // that guesses are expected to bring
};

}  // namespace

void Acceptance::Share::Learn(bool right) {
  ++count;
  const double rate = std::max(kLearningRate, 1 / static_cast<double>(count));
  likely += rate * ((right ? 1.0 : 0.0) - likely);
}

size_t Acceptance::ClassOf(double probability) {
  return static_cast<size_t>(std::clamp(static_cast<int>(probability * kClasses), 0, kClasses - 1));
}

void Acceptance::Learn(double probability, bool right) {
  by_probability_[ClassOf(probability)].Learn(right);
  all_.Learn(right);
}

double Acceptance::Likely(double probability) const {
  const Share& share = by_probability_[ClassOf(probability)];
  if (share.count >= 4 * kDoubt) return share.likely;
  const auto seen = static_cast<double>(share.count);
  return (share.likely * seen + probability * kDoubt) / (seen + kDoubt);
}

GuessPlan PlanGuesses(std::span<const GuessCandidate> candidates, int64_t sequences, int64_t max_rows,
                      const PassTimes& passes, const std::function<double(int64_t rows)>& draft_ms) {
  GuessPlan best;
  best.guesses.assign(candidates.size(), 0);
  const double pass_ms = passes.Ms(sequences).value();
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return candidates[a].accepted > candidates[b].accepted; });
  const auto base_tokens = static_cast<double>(sequences);
  for (size_t chosen = 1; chosen <= order.size(); ++chosen) {
    if (candidates[order[chosen - 1]].accepted < kLeastAccepted) break;
    for (const int64_t most : kGuesses) {
      Tried tried(candidates, std::span(order).first(chosen), most);
      const int64_t rows = sequences + tried.rows();
      if (tried.rows() == 0 || rows > max_rows) continue;
      const double ms = pass_ms * passes.Ratio(rows, sequences) + tried.DraftMs(draft_ms);
      const double gain = (base_tokens + tried.tokens()) / base_tokens * pass_ms / ms;
      if (gain < kLeastGain || gain <= best.gain) continue;
      best.gain = gain;
      best.guesses = tried.TakeGuesses();
    }
  }
  return best;
}

}  // namespace stoch
