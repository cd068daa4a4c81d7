// SPDX-License-Identifier: Apache-2.0
// A loaded draft model: guesses for all sequences of a pass, one pass of its own for each guess further on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/draft_model/draft_files.h"
#include "engine/engine.h"
#include "engine/speculation/draft_lengths.h"
#include "engine/speculation/draft_source.h"
#include "engine/speculation/group_source.h"
#include "engine/speculation/guess_plan.h"

namespace stoch {

class ModelDrafts;

struct DraftModelOptions {
  // The share of the time of passes that may go into looking whether guesses would pay, while they do not.
  double look_share = 0.015;
  // Guesses whatever that takes, as many as a pass may check, and calls them certain: for comparing bits.
  bool always = false;
};

// Greedy guesses, as likely as the model's own probability and what became of earlier ones say. They are made where they pay
// (PlanGuesses). Else the model has a look now and then, for a share of the time: a pass over the tokens since the last one
// tells what it would have guessed. A sequence that the model has not seen is caught up with once it has brought as many
// tokens as would pay for that.
// Threads: that of the target's engine.
class DraftModel : public std::enable_shared_from_this<DraftModel> {
 public:
  // Loads the model on the first device of the target's backend.
  // target: with its placement and sizes. Errors: as Engine::Open.
  static std::shared_ptr<DraftModel> Open(std::shared_ptr<Backend> backend, DraftFiles draft,
                                          const DecoderConfig& target_config, const EngineOptions& target,
                                          const DraftModelOptions& options = {});
  ~DraftModel();

  std::unique_ptr<DraftSource> NewSource();
  const Engine& engine() const { return *engine_; }

 private:
  friend class ModelDrafts;
  DraftModel(std::unique_ptr<Engine> engine, double likely_share, int64_t target_vocab_size,
             const DraftModelOptions& options);

  // A source that guesses in this turn, or catches up.
  struct Share {
    ModelDrafts* source = nullptr;
    int64_t wanted = 0;  // guesses
    double likely = 1;   // that all so far are right
    int64_t rows = 0;    // of the next pass
    int64_t picks = 0;   // of its last rows; 0: none
  };
  using Turns = std::span<const DraftTurn>;

  void Guess(Turns turns, int64_t max_rows, const PassTimes& times);
  void GuessAlways(Turns turns, int64_t max_rows);
  void GuessWherePays(Turns turns, int64_t max_rows, const PassTimes& times);
  bool CatchUp(const DraftTurn& turn, int64_t sequences, int64_t max_rows, const PassTimes& times);
  void Look(Turns turns, const PassTimes& times);
  void LookAt(const DraftTurn& turn);
  void Make(Turns turns, std::span<const int64_t> wanted);
  bool Run(std::span<Share> shares);
  double DraftMs(int64_t rows, const PassTimes& times) const;

  std::unique_ptr<Engine> engine_;
  const double likely_share_;  // of the target's time that a pass takes, until one has been timed
  const int64_t target_vocab_size_;
  const DraftModelOptions options_;
  PassTimes own_times_;
  Acceptance acceptance_;  // of all sources
  LookBudget budget_;
  size_t turn_ = 0;  // who is looked at next
};

}  // namespace stoch
