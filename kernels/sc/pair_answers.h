// SPDX-License-Identifier: Apache-2.0
// Keeps answers about pairs of operators that take milliseconds to find out and that every plan asks for.
#pragma once

#include <algorithm>
#include <deque>
#include <mutex>

#include "kernels/sc/sc_operator.h"

namespace stoch {

// Answers to one question about two operators, kept by their configurations. Thread-safe.
class PairAnswers {
 public:
  // ask(a, b): the answer for the operators that MakeScOperator makes of both configurations; called where it is not kept.
  template <typename Ask>
  bool Get(const ScOperator& a, const ScOperator& b, const Ask& ask) {
    const std::lock_guard lock(mutex_);
    const auto known = std::find_if(kept_.begin(), kept_.end(),
                                    [&](const Answer& answer) { return answer.a == a.config && answer.b == b.config; });
    if (known != kept_.end()) return known->answer;
    if (kept_.size() == kMost) kept_.pop_front();
    kept_.push_back({a.config, b.config, ask(*MakeScOperator(a.config), *MakeScOperator(b.config))});
    return kept_.back().answer;
  }

 private:
  static constexpr size_t kMost = 256;  // the oldest go first
  struct Answer {
    ScConfig a, b;
    bool answer;
  };
  std::mutex mutex_;
  std::deque<Answer> kept_;
};

}  // namespace stoch
