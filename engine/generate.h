// SPDX-License-Identifier: Apache-2.0
// Text generation: one request from prompt ids to text, streamed; and its step-by-step form for batches.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/logits_hash.h"
#include "engine/logprobs.h"
#include "engine/prefix_cache.h"
#include "engine/request/grammar.h"
#include "engine/request/request.h"
#include "engine/sampler.h"
#include "engine/speculation/draft_lengths.h"
#include "engine/speculation/draft_source.h"
#include "engine/speculation/group_source.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch {

struct Timings {
  double prompt_ms = 0;     // until the logits of the last prompt token
  double ttft_ms = 0;       // until the first token was picked
  double decode_ms = 0;     // from then to the end
  double ms_per_token = 0;  // decode_ms / (tokens - 1), 0 below two tokens
};

struct GenerateResult {
  std::vector<int32_t> ids;                                  // generated, an end-of-sequence or stop id included
  std::string text;                                          // without special tokens and stop strings
  std::vector<TokenLogprob> logprobs;                        // per generated id, where asked for
  std::vector<std::optional<TokenLogprob>> prompt_logprobs;  // per prompt id, where asked for; [0] is empty
  std::string logits_sha256;                                 // where asked for, see logits_hash.h
  FinishReason finish_reason = FinishReason::kNone;
  Timings timings;
  DraftCounts drafts;
};

// One request on its way: which tokens the next pass should run, and what to do with the logits. A batch is several
// of these stepped together. Ids only: what they are in text, and whether that ends at a stop string, is the caller's
// business (engine/request/text_stream.h).
class Generation {
 public:
  // Checks the request and reserves the sequence; with `reserved` false only the pages of what it begins with, and
  // Sequence::Grow has to give an item's sequence room before each step. With `prefixes` (not nullptr; outlives this),
  // what they know of the prompt is taken from there, and what this computes is left there.
  // Bits:   the same with and without prefixes. With emitted ids, what follows them is what followed them before:
  //         where the configuration is chunk-invariant they are computed with the prompt, elsewhere, and where logits
  //         are hashed, one after another as they came.
  // Errors: InvalidInput: empty prompt, ids out of range, a prompt longer than the context, bad options, a bad grammar, or
  //         no free pages.
  Generation(Engine& engine, GenerateRequest request, PrefixCache* prefixes = nullptr, bool reserved = true);

  const Engine& engine() const { return *engine_; }
  bool done() const { return result_.finish_reason != FinishReason::kNone; }
  // Itself for who guesses at the tokens after its ids: with the source of the engine's options. Without one while tokens
  // that it began with are left, where a grammar says what may come, and where the options draft nothing.
  // Requires: !done(), and no step over it in flight.
  DraftTurn Turn();
  // Its share of the next pass within a budget of rows; num_tokens = 0 if it does not fit. What the item refers to
  // stays as it is until the next call. Requires: !done(), and no step over it in flight.
  // drafts: tokens that the pass checks besides, as many of them as there are rows and pages for: those of its source, cut. They are
  //         pending tokens of the sequence until Accept or the next call.
  StepItem Next(int64_t budget, std::span<const DraftedToken> drafts = {});
  // Errors of Accept: InvalidInput where a logit is not finite, or the grammar comes to nothing.
  // After a Step that ran `item` = Next(...): reads its output rows, which start at `first_row`, and picks a token if
  // the prompt is complete, and one more for each draft that was picked. Returns: how many output rows were its own.
  // on_id: sees every token but a stop id, in order; false: its text came to a stop string, and nothing follows it.
  int64_t Accept(const StepItem& item, int64_t first_row, const std::function<bool(int32_t id)>& on_id = {});
  // From now on nobody guesses for it: for who must see each token in a pass of its own.
  void DraftNothing() { draft_source_.reset(); }
  void Cancel();
  // The request of another Generation that goes on where this one is, with the same bits. This one is to be destroyed.
  // Requires: !done().
  GenerateRequest Rest();

  int64_t prompt_tokens() const { return static_cast<int64_t>(request_.prompt.size()); }
  int64_t prompt_done() const;                                        // prompt tokens in the cache
  bool prefilling() const { return sequence_->computed() < given_; }  // tokens that it began with are left
  int64_t prompt_reused() const { return reused_; }                   // of them, those that were there before
  // Positions that it may still need pages for.
  int64_t missing_room() const { return std::max<int64_t>(0, sequence_->capacity() - sequence_->room()); }
  const GenerateResult& result() const { return result_; }  // complete once done(), but for the text
  // Of its ids, those that the request came with; they have no logprobs.
  int64_t emitted() const { return static_cast<int64_t>(request_.emitted.size()); }
  std::string LogitsHashSoFar() const { return hash_.Hex(); }

 private:
  using Clock = std::chrono::steady_clock;
  void Ask(const StepItem& item);
  void AskPicks();
  void BeginGuide();
  void FillMask();
  void AcceptPromptLogprobs(const StepItem& item, int64_t first_row);
  TokenLogprob LogprobOf(int64_t row) const;
  void KeepPrefix();
  void AcceptPicks(int64_t end_row, const std::function<bool(int32_t)>& on_id);
  void ForgetDrafts();
  int64_t IdsWithoutDrafts() const;
  bool Pick(int64_t row);
  bool Emit(int32_t id);
  void Finish(FinishReason reason);
  bool IsStopId(int32_t id) const;
  bool StepsEmitted() const;

  Engine* engine_;
  PrefixCache* prefixes_;
  GenerateRequest request_;
  int64_t max_tokens_ = 0;  // with the context's limit
  int64_t reused_ = 0;
  int64_t given_ = 0;  // tokens that are there from the start: the prompt, and emitted ids unless they are stepped
  std::vector<int32_t> stop_ids_;
  std::unique_ptr<Sequence> sequence_;
  LogitsHash hash_;
  TokenCounts counts_;
  std::unique_ptr<TokenGuide> guide_;          // null: every token may come
  std::vector<uint32_t> mask_;                 // of the next pick, with a guide
  size_t guided_ = 0;                          // ids that guide_ has accepted
  bool is_filled_ = false;                     // mask_ is the mask after guided_ ids
  std::exception_ptr guide_error_;             // thrown by guide_ in FillMask; Accept throws it
  std::unique_ptr<DraftSource> draft_source_;  // null: nothing is drafted
  int64_t drafts_ = 0;                         // the last tokens of the sequence, which no pass has confirmed
  RowQueries queries_;                         // of the item that Next gave last
  // counts_ with the first, the first two, ... drafts; picks refer to their elements.
  std::vector<std::vector<TokenCount>> draft_counts_;
  std::vector<float> logits_;
  GenerateResult result_;
  Clock::time_point start_;
  Clock::time_point first_token_;
};

// For each of the generations that are to share the next pass, the drafts to give its Next; none at all where one of them
// has tokens left that it began with, for such a pass has many rows already.
// Requires: no generation is done or in flight.
std::vector<std::vector<DraftedToken>> DraftsForPass(std::span<Generation* const> generations, const PassTimes& times);

struct GenerateCallbacks {
  std::function<void(std::string_view text)> on_text;
  std::function<void(int64_t done, int64_t total)> on_prompt;  // prompt tokens processed
  const std::atomic<bool>* cancel = nullptr;                   // polled between passes
};

// Runs one request to its end. tokenizer: of the text and its stop strings, and of more stop ids; null: neither.
// Errors: as Generation and Engine::Step.
GenerateResult Generate(Engine& engine, const Tokenizer* tokenizer, const GenerateRequest& request,
                        const GenerateCallbacks& callbacks = {});

}  // namespace stoch
