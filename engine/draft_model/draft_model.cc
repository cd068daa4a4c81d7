// SPDX-License-Identifier: Apache-2.0
#include "engine/draft_model/draft_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <new>
#include <optional>
#include <utility>

#include "engine/draft_model/model_drafts.h"
#include "kernels/base/device_fault.h"
#include "kernels/base/error.h"

namespace stoch {
namespace {

constexpr int64_t kTail = 16;      // tokens that a look takes at once, and that a source may be behind and still guess
constexpr int64_t kKnown = 16;     // guesses that must have been seen before any is made because it pays
constexpr int64_t kFewTokens = 8;  // that every sequence is expected to bring
constexpr int64_t kManyRows = 32;  // of a pass, that take time by their number
constexpr double kLeastLikely = 0.2;
constexpr double kHopeless = 0.1;  // of the looks, where even guesses that are all right would not pay

// A number that is not finite, or no memory: the target goes on without guesses. After anything else a device is lost.
bool EndsGuesses(const std::exception& error) {
  return dynamic_cast<const InvalidInput*>(&error) != nullptr ||
         dynamic_cast<const DeviceRefusal*>(&error) != nullptr || dynamic_cast<const OutOfMemory*>(&error) != nullptr ||
         dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
}

}  // namespace

std::shared_ptr<DraftModel> DraftModel::Open(std::shared_ptr<Backend> backend, DraftFiles draft,
                                             const DecoderConfig& target_config, const EngineOptions& target,
                                             const DraftModelOptions& options) {
  EngineOptions engine = DraftEngineOptions(draft, target);
  engine.on_progress = target.on_progress;
  const double likely_share =
      static_cast<double>(TotalParameters(draft.files.config)) / static_cast<double>(TotalParameters(target_config));
  return std::shared_ptr<DraftModel>(new DraftModel(Engine::Open(std::move(backend), std::move(draft.files), engine),
                                                    likely_share, target_config.vocab_size, options));
}

DraftModel::DraftModel(std::unique_ptr<Engine> engine, double likely_share, int64_t target_vocab_size,
                       const DraftModelOptions& options)
    : engine_(std::move(engine)),
      likely_share_(likely_share),
      target_vocab_size_(target_vocab_size),
      options_(options),
      budget_(options.look_share) {}

DraftModel::~DraftModel() = default;

std::unique_ptr<DraftSource> DraftModel::NewSource() {
  return std::make_unique<ModelDrafts>(shared_from_this(), acceptance_);
}

// Requires: times.Ms has a value.
double DraftModel::DraftMs(int64_t rows, const PassTimes& times) const {
  const std::optional<double> own = own_times_.Ms(rows);
  if (own && (rows <= kManyRows || own_times_.knows_prompts())) return *own;
  return likely_share_ * times.Ms(rows).value();
}

void DraftModel::Guess(Turns turns, int64_t max_rows, const PassTimes& times) {
  for (const DraftTurn& turn : turns) {
    if (turn.source != nullptr) static_cast<ModelDrafts*>(turn.source)->Learn(turn.ids, acceptance_);
  }
  if (options_.always) {
    GuessAlways(turns, max_rows);
  } else if (times.Ms(static_cast<int64_t>(turns.size())).has_value()) {
    GuessWherePays(turns, max_rows, times);
  }
}

void DraftModel::GuessAlways(Turns turns, int64_t max_rows) {
  const auto count = static_cast<int64_t>(turns.size());
  std::vector<int64_t> wanted;
  for (const DraftTurn& turn : turns) {
    wanted.push_back(turn.source == nullptr ? 0 : std::min(turn.most, (max_rows - count) / count));
  }
  Make(turns, wanted);
}

void DraftModel::GuessWherePays(Turns turns, int64_t max_rows, const PassTimes& times) {
  const auto sequences = static_cast<int64_t>(turns.size());
  const double pass_ms = times.Ms(sequences).value();
  const auto draft_ms = [&](int64_t rows) { return DraftMs(rows, times); };
  std::vector<GuessCandidate> candidates;
  std::vector<GuessCandidate> certain;  // the same, if all of their guesses were right
  for (const DraftTurn& turn : turns) {
    GuessCandidate& candidate = candidates.emplace_back();
    const auto* source = static_cast<const ModelDrafts*>(turn.source);
    if (source != nullptr && !source->gave_up_) {
      candidate.accepted = source->acceptance_.mean();
      candidate.behind = source->Behind(turn.ids);
      candidate.most = candidate.behind <= kTail ? turn.most : 0;
    }
    certain.push_back({1, 1, turn.source == nullptr ? 0 : turn.most});
  }
  const bool could_pay = PlanGuesses(certain, sequences, max_rows, times, draft_ms).gain > 1;
  budget_.Run(could_pay ? pass_ms : kHopeless * pass_ms);
  if (!could_pay || acceptance_.learnt() < kKnown) return Look(turns, times);
  const GuessPlan plan = PlanGuesses(candidates, sequences, max_rows, times, draft_ms);
  // One at a time: its pass delays this one.
  for (size_t i = 0; i < turns.size(); ++i) {
    if (candidates[i].behind > kTail && CatchUp(turns[i], sequences, max_rows, times)) break;
  }
  if (plan.gain > 1) return Make(turns, plan.guesses);
  Look(turns, times);
}

// Goes on with the tokens of a source that is far behind, where what its guesses would save pays for them: a text that has
// brought n tokens is expected to bring as many more.
bool DraftModel::CatchUp(const DraftTurn& turn, int64_t sequences, int64_t max_rows, const PassTimes& times) {
  auto* source = static_cast<ModelDrafts*>(turn.source);
  if (source == nullptr || source->gave_up_) return false;
  const GuessCandidate caught_up{source->acceptance_.mean(), 1, turn.most};
  const auto draft_ms = [&](int64_t rows) { return DraftMs(rows, times); };
  const GuessPlan plan = PlanGuesses({&caught_up, 1}, sequences, max_rows, times, draft_ms);
  const auto more = static_cast<double>(std::min(turn.left, turn.generated + kFewTokens));
  const double saved_ms = more * times.Ms(sequences).value() * (1 - 1 / plan.gain);
  const int64_t behind = source->Behind(turn.ids);
  const int64_t piece = std::min(behind, engine_->shape().max_rows);
  const double pieces = static_cast<double>(behind) / static_cast<double>(piece);
  if (saved_ms <= pieces * DraftMs(piece, times) || !source->Follow(*engine_, turn.ids, 0)) return false;
  Share share{source, 0, 1, std::min(source->sequence_->pending(), engine_->shape().max_rows), 0};
  Run({&share, 1});
  return true;
}

// Finds out what would have been guessed for one of the sequences, if that may be spent now.
void DraftModel::Look(Turns turns, const PassTimes& times) {
  for (size_t i = 0; i < turns.size(); ++i) {
    const DraftTurn& turn = turns[(turn_ + i) % turns.size()];
    const auto* source = static_cast<const ModelDrafts*>(turn.source);
    if (source == nullptr || source->gave_up_ || turn.most < 1 || turn.generated < kTail) continue;
    const int64_t rows = std::min(source->Behind(turn.ids), engine_->shape().max_rows);
    if (!budget_.Allows(DraftMs(rows, times))) continue;
    turn_ = (turn_ + i + 1) % turns.size();
    const auto start = std::chrono::steady_clock::now();
    LookAt(turn);
    budget_.Spend(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    return;
  }
}

void DraftModel::LookAt(const DraftTurn& turn) {
  auto* source = static_cast<ModelDrafts*>(turn.source);
  if (!source->Follow(*engine_, turn.ids, 0)) return;
  const Sequence& sequence = *source->sequence_;
  Share share;
  share.source = source;
  if (sequence.pending() > kTail) {  // of these no guess is asked for
    share.rows = std::min(sequence.pending() - kTail, engine_->shape().max_rows);
    if (!Run({&share, 1}) || sequence.pending() > kTail) return;
  }
  share.rows = sequence.pending();
  share.picks = std::min(share.rows, turn.generated);
  if (!Run({&share, 1})) return;
  // All but the last are known already.
  const auto first = source->drafts_.size() - static_cast<size_t>(share.picks);
  std::vector<DraftedToken> seen(source->drafts_.begin() + static_cast<std::ptrdiff_t>(first), source->drafts_.end());
  for (size_t i = 0; i + 1 < seen.size(); ++i) {
    const int32_t next = turn.ids[turn.ids.size() - seen.size() + i + 1];
    source->Learn(seen[i].likely, seen[i].id == next, acceptance_);
  }
  source->drafts_ = {seen.back()};
  source->first_draft_ = turn.ids.size();
  if (seen.back().id >= target_vocab_size_) return;
  source->proposed_ = {{seen.back().id, source->acceptance_.Likely(seen.back().likely)}};
}

// Guesses `wanted[i]` tokens for each turn, fewer where they become unlikely.
void DraftModel::Make(Turns turns, std::span<const int64_t> wanted) {
  std::vector<Share> shares;
  int64_t rows = engine_->shape().max_rows;
  for (size_t i = 0; i < turns.size(); ++i) {
    auto* source = static_cast<ModelDrafts*>(turns[i].source);
    if (wanted[i] < 1 || rows < 1 || source->gave_up_) continue;
    if (!source->Follow(*engine_, turns[i].ids, wanted[i] - 1)) continue;
    Share& share = shares.emplace_back();
    share.source = source;
    share.rows = std::min(rows, source->sequence_->pending());
    share.picks = share.rows == source->sequence_->pending() ? 1 : 0;
    share.wanted = share.picks * wanted[i];
    source->first_draft_ = turns[i].ids.size();
    rows -= share.rows;
  }
  while (!shares.empty() && Run(shares)) {
    std::erase_if(shares, [&](Share& share) {
      if (share.picks == 0) return true;
      const DraftedToken guess = share.source->drafts_.back();
      if (guess.id >= target_vocab_size_) return true;
      const double likely = options_.always ? 1 : share.source->acceptance_.Likely(guess.likely);
      share.source->proposed_.push_back({guess.id, likely});
      share.likely *= likely;
      share.rows = 1;
      if (--share.wanted == 0 || share.likely < kLeastLikely) return true;
      share.source->sequence_->Append({&guess.id, 1});
      return false;
    });
  }
}

// One pass. Its picks are added to the drafts of their sources.
// Returns: false where it failed, and its sources guess no more.
bool DraftModel::Run(std::span<Share> shares) {
  RowQueries queries;
  queries.top = 0;
  std::vector<RowQueries> asked;
  std::vector<StepItem> items;
  asked.reserve(shares.size());
  int64_t rows = 0;
  for (const Share& share : shares) {
    queries.picks.assign(static_cast<size_t>(share.picks), TokenPick());
    asked.push_back(queries);
    StepOutput output = share.picks > 1 ? StepOutput::kAll : StepOutput::kLast;
    if (share.picks == 0) output = StepOutput::kNone;
    items.push_back({share.source->sequence_.get(), share.rows, output, &asked.back()});
    rows += share.rows;
  }
  const auto start = std::chrono::steady_clock::now();
  try {
    engine_->Step(items);
    int64_t row = 0;
    for (const Share& share : shares) {
      row += share.picks > 1 ? share.rows - share.picks : 0;
      for (int64_t pick = 0; pick < share.picks; ++pick, ++row) {
        share.source->drafts_.push_back({engine_->PickedToken(row), std::exp(engine_->LogProb(row).logprob)});
      }
    }
  } catch (const std::exception& error) {
    if (!EndsGuesses(error)) throw;
    for (const Share& share : shares) share.source->GiveUp();
    return false;
  }
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  if (rows > kManyRows) {
    own_times_.AddPrompt(rows, ms);
  } else {
    own_times_.Add(rows, ms);
  }
  return true;
}

}  // namespace stoch
