// Text generation: one request from prompt ids to text, streamed; and its step-by-step form for batches.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
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
#include "engine/sampler.h"
#include "engine/stop_strings.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch {

enum class FinishReason : uint8_t {
  kNone,       // still running
  kStop,       // end-of-sequence token, stop id or stop string
  kLength,     // max_tokens or the context reached
  kCancelled,  // by the caller
};
std::string_view FinishReasonName(FinishReason reason);  // "", "stop", "length", "cancelled"

struct GenerateRequest {
  std::vector<int32_t> prompt;  // ids, BOS included where wanted; at least one, at most the context
  int64_t max_tokens = -1;      // -1 = up to the context
  SamplingOptions sampling;
  std::vector<std::string> stop;  // never part of the text; the token that completes one is part of ids
  std::vector<int32_t> stop_ids;  // besides end-of-sequence
  bool ignore_eos = false;
  int top_logprobs = -1;         // -1 = no logprobs; n = of every token, with the n most likely alternatives
  bool prompt_logprobs = false;  // the same for prompt tokens (needs top_logprobs >= 0)
  bool hash_logits = false;
};

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
};

// One request on its way: which tokens the next pass should run, and what to do with the logits. A batch is several
// of these stepped together.
class Generation {
 public:
  // What:   checks the request and reserves the sequence. `tokenizer` may be null: no text, no stop strings. With
  //         `prefixes` (not nullptr; outlives this), what they know of the prompt is taken from there, and what this
  //         computes is left there.
  // Bits:   the same with and without prefixes.
  // Errors: InvalidInput: empty prompt, ids out of range, a prompt longer than the context, bad options,
  //         or no free pages.
  Generation(Engine& engine, const Tokenizer* tokenizer, GenerateRequest request, PrefixCache* prefixes = nullptr);

  bool done() const { return result_.finish_reason != FinishReason::kNone; }
  // What: its share of the next pass within a budget of rows; num_tokens = 0 if it does not fit. What the item refers
  //       to stays as it is until the next call. Requires: !done().
  StepItem Next(int64_t budget) const;
  // What:   after a Step that ran `item` = Next(...): reads its output rows, which start at `first_row`, and picks a
  //         token if the prompt is complete. Returns: how many output rows were its own.
  int64_t Accept(const StepItem& item, int64_t first_row);
  // What: text that is certain (no half characters, no possible start of a stop string) since the last call.
  std::string TakeText();
  void Cancel();

  int64_t prompt_tokens() const { return static_cast<int64_t>(request_.prompt.size()); }
  int64_t prompt_done() const;                              // prompt tokens in the cache
  int64_t prompt_reused() const { return reused_; }         // of them, those that were there before
  const GenerateResult& result() const { return result_; }  // complete once done()

 private:
  using Clock = std::chrono::steady_clock;
  void Ask(const StepItem& item) const;
  void AcceptPromptLogprobs(const StepItem& item, int64_t first_row);
  TokenLogprob LogprobOf(int64_t row) const;
  void KeepPrefix();
  void Pick(int64_t row);
  void Emit(int32_t id);
  void Finish(FinishReason reason);
  bool IsStopId(int32_t id) const;

  Engine* engine_;
  PrefixCache* prefixes_;
  GenerateRequest request_;
  int64_t max_tokens_ = 0;  // with the context's limit
  int64_t reused_ = 0;
  std::vector<int32_t> stop_ids_;
  std::unique_ptr<Sequence> sequence_;
  std::optional<StreamDecoder> decoder_;
  StopStrings stop_strings_;
  LogitsHash hash_;
  TokenCounts counts_;
  mutable RowQueries queries_;  // of the item that Next gave last
  std::vector<float> logits_;
  std::string ready_;
  GenerateResult result_;
  Clock::time_point start_;
  Clock::time_point first_token_;
};

struct GenerateCallbacks {
  std::function<void(std::string_view text)> on_text;
  std::function<void(int64_t done, int64_t total)> on_prompt;  // prompt tokens processed
  const std::atomic<bool>* cancel = nullptr;                   // polled between passes
};

// What:   runs one request to its end.
// Errors: as Generation and Engine::Step.
GenerateResult Generate(Engine& engine, const Tokenizer* tokenizer, const GenerateRequest& request,
                        const GenerateCallbacks& callbacks = {});

}  // namespace stoch
