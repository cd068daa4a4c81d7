// SPDX-License-Identifier: Apache-2.0
// A sequence whose tokens are told, whatever its model picks: what guesses bring for a text that is known, in the time of
// passes of a model with random weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/speculation/draft_source.h"
#include "engine/speculation/group_source.h"

namespace stoch::cli {

// Steps as a Generation does (engine/generate.h): the same rows, with the same picks asked for and waited for. A guess is right
// where it is the next token that was told.
class ToldSequence {
 public:
  // answer: of at least one token. sampling: of the picks; without penalties.
  // Errors: as Engine::NewSequence, and InvalidInput where the cache has no room.
  ToldSequence(Engine& engine, std::span<const int32_t> prompt, std::vector<int32_t> answer,
               const SamplingOptions& sampling);

  // From now on nobody guesses for it.
  void DraftNothing() { source_.reset(); }
  bool prefilling() const { return sequence_->computed() < prompt_tokens_; }
  bool done() const { return told_ == static_cast<int64_t>(answer_.size()); }
  // These as of a Generation.
  DraftTurn Turn();
  StepItem Next(int64_t budget, std::span<const DraftedToken> drafts);
  int64_t Accept(const StepItem& item, int64_t first_row);

  // Of the answer, those that came.
  std::span<const int32_t> ids() const { return std::span(answer_).first(static_cast<size_t>(told_)); }
  const DraftCounts& drafts() const { return counts_; }

 private:
  void ForgetDrafts();

  Engine& engine_;
  const int64_t prompt_tokens_;
  const std::vector<int32_t> answer_;
  const SamplingOptions sampling_;
  std::unique_ptr<Sequence> sequence_;
  std::unique_ptr<DraftSource> source_;  // null: nothing is drafted
  RowQueries queries_;
  int64_t told_ = 0;    // tokens of the answer
  int64_t drafts_ = 0;  // the last tokens of the sequence
  DraftCounts counts_;
};

}  // namespace stoch::cli
