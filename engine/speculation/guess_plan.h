// SPDX-License-Identifier: Apache-2.0
// How many tokens a draft model should guess, decided before it does: its passes take time, and may never pay.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/speculation/draft_lengths.h"

namespace stoch {

// How often guesses were right, learnt by the probability that the draft model gave them: a model that is sure of what the
// other would not say is found out, and so is a temperature.
class Acceptance {
 public:
  void Learn(double probability, bool right);
  double Likely(double probability) const;  // that a guess of this probability is right
  double mean() const { return all_.likely; }
  int64_t learnt() const { return all_.count; }

 private:
  struct Share {
    double likely = 0;
    int64_t count = 0;
    void Learn(bool right);
  };
  static constexpr int kClasses = 8;
  static size_t ClassOf(double probability);

  std::array<Share, kClasses> by_probability_;
  Share all_;
};

// A sequence that a draft model may guess for.
struct GuessCandidate {
  double accepted = 0;  // 0..1: how likely each guess is right, where those before it are
  int64_t behind = 1;   // tokens that the draft model has yet to see, which its first pass takes; 1 or more
  int64_t most = 0;     // guesses
};

struct GuessPlan {
  std::vector<int64_t> guesses;  // of each candidate; all 0 where they would not pay
  double gain = 1;               // tokens per time, over passes without guesses
};

// For one pass of `sequences`, some of which are candidates. draft_ms: of a pass of the draft model by its rows.
// Requires: passes.Ms(sequences) has a value.
GuessPlan PlanGuesses(std::span<const GuessCandidate> candidates, int64_t sequences, int64_t max_rows,
                      const PassTimes& passes, const std::function<double(int64_t rows)>& draft_ms);

// What may be spent on finding out whether guesses would pay: a share of the time of passes. Nothing is saved up beyond one
// look.
class LookBudget {
 public:
  explicit LookBudget(double share) : share_(share) {}
  void Run(double ms) { room_ms_ += share_ * ms; }
  bool Allows(double ms) const { return ms <= room_ms_; }
  void Spend(double ms) { room_ms_ = room_ms_ < ms ? room_ms_ - ms : 0; }

 private:
  double share_;
  double room_ms_ = 0;
};

}  // namespace stoch
