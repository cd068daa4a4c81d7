// SPDX-License-Identifier: Apache-2.0
#include "engine/draft_model/model_drafts.h"

#include <algorithm>
#include <utility>

#include "engine/draft_model/draft_model.h"

namespace stoch {

ModelDrafts::ModelDrafts(std::shared_ptr<DraftModel> model, Acceptance acceptance)
    : model_(std::move(model)), acceptance_(acceptance) {}

void ModelDrafts::Prepare(std::span<const DraftTurn> turns, int64_t max_rows, const PassTimes& times) {
  model_->Guess(turns, max_rows, times);
}

std::vector<DraftedToken> ModelDrafts::Propose(std::span<const int32_t> /*ids*/, int64_t most) {
  std::vector<DraftedToken> drafts = std::exchange(proposed_, {});
  drafts.resize(std::min(drafts.size(), static_cast<size_t>(std::max<int64_t>(0, most))));
  return drafts;
}

void ModelDrafts::Learn(double probability, bool right, Acceptance& all) {
  acceptance_.Learn(probability, right);
  all.Learn(probability, right);
}

void ModelDrafts::Learn(std::span<const int32_t> ids, Acceptance& all) {
  for (size_t i = 0; i < drafts_.size() && first_draft_ + i < ids.size(); ++i) {
    const bool right = ids[first_draft_ + i] == drafts_[i].id;
    Learn(drafts_[i].likely, right, all);
    if (!right) break;
  }
  drafts_.clear();
  proposed_.clear();
}

int64_t ModelDrafts::CommonTokens(std::span<const int32_t> ids) const {
  if (sequence_ == nullptr) return 0;
  const std::vector<int32_t>& own = sequence_->ids();
  return std::mismatch(ids.begin(), ids.end(), own.begin(), own.end()).first - ids.begin();
}

int64_t ModelDrafts::Behind(std::span<const int32_t> ids) const {
  const int64_t computed = sequence_ == nullptr ? 0 : std::min(CommonTokens(ids), sequence_->computed());
  return std::max<int64_t>(1, static_cast<int64_t>(ids.size()) - computed);
}

bool ModelDrafts::Follow(Engine& engine, std::span<const int32_t> ids, int64_t more) {
  const auto length = static_cast<int64_t>(ids.size());
  const int64_t capacity = std::min(engine.shape().context, NumPages(engine.shape()) * kKvPageTokens);
  if (length + more > capacity) return false;
  if (sequence_ == nullptr) sequence_ = engine.NewSequence(capacity, {}, {}, false);
  if (sequence_ == nullptr) return false;
  // The last token runs again where guesses that were right have been there: what follows it is asked for.
  const int64_t kept = std::min(CommonTokens(ids), length - 1);
  sequence_->Truncate(kept);
  const std::span<const int32_t> rest = ids.subspan(static_cast<size_t>(kept));
  const int64_t vocab_size = engine.config().vocab_size;
  if (std::any_of(rest.begin(), rest.end(), [=](int32_t id) { return id >= vocab_size; })) {
    GiveUp();
    return false;
  }
  sequence_->Append(rest);
  if (sequence_->room() >= length + more || sequence_->Grow(length + more)) return true;
  sequence_.reset();  // others go on with its pages
  return false;
}

void ModelDrafts::GiveUp() {
  gave_up_ = true;
  sequence_.reset();
  drafts_.clear();
  proposed_.clear();
}

}  // namespace stoch
