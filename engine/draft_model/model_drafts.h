// SPDX-License-Identifier: Apache-2.0
// State of a draft model for one sequence: a sequence of its own, which follows it, and the guesses that it made.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/speculation/group_source.h"
#include "engine/speculation/guess_plan.h"

namespace stoch {

class DraftModel;

class ModelDrafts final : public GroupDraftSource {
 public:
  ModelDrafts(std::shared_ptr<DraftModel> model, Acceptance acceptance);

  void Prepare(std::span<const DraftTurn> turns, int64_t max_rows, const PassTimes& times) override;
  // Those of the last Prepare.
  std::vector<DraftedToken> Propose(std::span<const int32_t> ids, int64_t most) override;

 private:
  friend class DraftModel;
  // Which guesses were right, as far as the tokens are known by now; for itself and for `all`.
  void Learn(std::span<const int32_t> ids, Acceptance& all);
  void Learn(double probability, bool right, Acceptance& all);
  // Tokens of `ids` that the draft model has not computed, at least the last one.
  int64_t Behind(std::span<const int32_t> ids) const;
  int64_t CommonTokens(std::span<const int32_t> ids) const;
  // Makes the sequence that of `ids`, with room for `more` tokens after them. Returns: false where it cannot be, as the
  // cache or the context is full, or a token is none of the draft model's.
  bool Follow(Engine& engine, std::span<const int32_t> ids, int64_t more);
  // Guesses nothing from now on: what its pass met would be met again.
  void GiveUp();

  std::shared_ptr<DraftModel> model_;  // outlives sequence_
  std::unique_ptr<Sequence> sequence_;
  std::vector<DraftedToken> drafts_;  // `likely`: as the model gave it, for Learn
  std::vector<DraftedToken> proposed_;
  size_t first_draft_ = 0;  // its position
  Acceptance acceptance_;
  bool gave_up_ = false;
};

}  // namespace stoch
