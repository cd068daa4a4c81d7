// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/told_sequence.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"

namespace stoch::cli {

ToldSequence::ToldSequence(Engine& engine, std::span<const int32_t> prompt, std::vector<int32_t> answer,
                           const SamplingOptions& sampling)
    : engine_(engine),
      prompt_tokens_(static_cast<int64_t>(prompt.size())),
      answer_(std::move(answer)),
      sampling_(sampling) {
  STOCH_CHECK(!prompt.empty() && !answer_.empty());
  const auto capacity = static_cast<int64_t>(prompt.size() + answer_.size());
  sequence_ = engine.NewSequence(capacity, prompt, {});
  if (sequence_ == nullptr) throw InvalidInput("the KV cache has no room for another sequence just now");
  if (engine.options().draft_tokens > 0) source_ = engine.options().make_drafts();
}

void ToldSequence::ForgetDrafts() {
  if (drafts_ > 0) sequence_->Truncate(prompt_tokens_ + told_);
  drafts_ = 0;
}

DraftTurn ToldSequence::Turn() {
  ForgetDrafts();
  DraftTurn turn;
  if (source_ == nullptr || prefilling()) return turn;
  turn.source = source_.get();
  turn.ids = sequence_->ids();
  turn.generated = told_;
  turn.left = static_cast<int64_t>(answer_.size()) - told_;
  turn.most = std::min(engine_.options().draft_tokens, turn.left - 1);
  return turn;
}

StepItem ToldSequence::Next(int64_t budget, std::span<const DraftedToken> drafts) {
  STOCH_CHECK(!done());
  ForgetDrafts();
  drafts_ = std::min(static_cast<int64_t>(drafts.size()), std::max<int64_t>(0, budget - 1));
  for (int64_t i = 0; i < drafts_; ++i) sequence_->Append({&drafts[static_cast<size_t>(i)].id, 1});
  StepItem item;
  item.sequence = sequence_.get();
  item.num_tokens = engine_.NextTokens(*sequence_, budget);
  const bool picks = item.num_tokens == sequence_->pending();
  item.output = drafts_ > 0 ? StepOutput::kAll : picks ? StepOutput::kLast : StepOutput::kNone;
  queries_ = {};
  for (int64_t i = 0; picks && i <= drafts_; ++i) {
    queries_.picks.push_back(MakePick(sampling_, {}, prompt_tokens_ + told_ + i));
  }
  item.queries = &queries_;
  return item;
}

int64_t ToldSequence::Accept(const StepItem& item, int64_t /*first_row*/) {
  const int64_t rows = item.output == StepOutput::kAll ? item.num_tokens : item.output == StepOutput::kLast ? 1 : 0;
  if (sequence_->pending() > 0) return rows;
  const int64_t drafted = std::exchange(drafts_, 0);
  counts_.passes += drafted > 0 ? 1 : 0;
  counts_.drafted += drafted;
  int64_t right = 0;
  while (right < drafted && !done()) {
    const int32_t guess = sequence_->ids()[static_cast<size_t>(prompt_tokens_ + told_)];
    if (guess != answer_[static_cast<size_t>(told_)]) break;
    ++told_;
    ++right;
  }
  counts_.accepted += right;
  sequence_->Truncate(prompt_tokens_ + told_);
  if (done()) return rows;
  const int32_t next = answer_[static_cast<size_t>(told_++)];
  if (!done()) sequence_->Append({&next, 1});
  return rows;
}

}  // namespace stoch::cli
