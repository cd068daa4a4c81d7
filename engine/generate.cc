#include "engine/generate.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/logprobs.h"
#include "kernels/base/check.h"
#include "kernels/base/error.h"

namespace stoch {
namespace {

void CheckRequest(const Engine& engine, const Tokenizer* tokenizer, const GenerateRequest& request) {
  Validate(request.sampling, engine.config().vocab_size);
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) throw InvalidInput("the prompt is empty; expected at least one token");
  if (prompt > engine.shape().context) {
    throw InvalidInput("the prompt has " + std::to_string(prompt) + " tokens; allowed is up to the context of " +
                       std::to_string(engine.shape().context));
  }
  if (request.max_tokens < -1) {
    throw InvalidInput("max_tokens = " + std::to_string(request.max_tokens) + ": allowed is 0 or more, or -1");
  }
  if (request.top_logprobs < -1) {
    throw InvalidInput("top_logprobs = " + std::to_string(request.top_logprobs) + ": allowed is 0 or more, or -1");
  }
  if (request.prompt_logprobs && request.top_logprobs < 0) {
    throw InvalidInput("prompt_logprobs needs top_logprobs of 0 or more");
  }
  if (tokenizer == nullptr && !request.stop.empty()) {
    throw InvalidInput("stop strings need a tokenizer, and this model has none");
  }
}

double Milliseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

std::string_view FinishReasonName(FinishReason reason) {
  constexpr std::array<std::string_view, 4> kNames = {"", "stop", "length", "cancelled"};
  return kNames[static_cast<size_t>(reason)];
}

Generation::Generation(Engine& engine, const Tokenizer* tokenizer, GenerateRequest request, PrefixCache* prefixes)
    : engine_(&engine), prefixes_(prefixes), request_(std::move(request)), stop_strings_(request_.stop) {
  CheckRequest(engine, tokenizer, request_);
  const int64_t room = engine.shape().context - prompt_tokens();
  max_tokens_ = request_.max_tokens < 0 ? room : std::min(request_.max_tokens, room);

  stop_ids_ = request_.stop_ids;
  if (!request_.ignore_eos) {
    const std::vector<int32_t>& model_eos = engine.config().eos_token_ids;
    stop_ids_.insert(stop_ids_.end(), model_eos.begin(), model_eos.end());
    if (tokenizer != nullptr) {
      const std::vector<int32_t> eos = tokenizer->eos_ids();
      stop_ids_.insert(stop_ids_.end(), eos.begin(), eos.end());
    }
  }
  PrefixCache::Match known;
  if (prefixes_ != nullptr) {
    known = prefixes_->Find(request_.prompt, request_.prompt_logprobs ? request_.top_logprobs : -1);
    reused_ = static_cast<int64_t>(known.pages.size()) * kKvPageTokens;
    prefixes_->MakeRoom(prompt_tokens() + max_tokens_ - reused_, known.pages);
  }
  sequence_ = engine.NewSequence(prompt_tokens() + max_tokens_, request_.prompt, known.pages);
  if (sequence_ == nullptr) throw InvalidInput("the KV cache has no room for another sequence just now");
  if (tokenizer != nullptr) {
    // The text continues the prompt: its first space is a space, and half a character at the prompt's end is finished.
    decoder_.emplace(*tokenizer);
    for (const int32_t id : request_.prompt) decoder_->Push(id);
  }
  if (HasPenalties(request_.sampling)) counts_.AddPrompt(request_.prompt);
  result_.prompt_logprobs = std::move(known.logprobs);
  if (request_.prompt_logprobs && reused_ == 0) result_.prompt_logprobs.emplace_back();
  start_ = Clock::now();
  if (max_tokens_ == 0 && !request_.prompt_logprobs) Finish(FinishReason::kLength);
}

int64_t Generation::prompt_done() const { return std::min(sequence_->computed(), prompt_tokens()); }

StepItem Generation::Next(int64_t budget) const {
  STOCH_CHECK(!done());
  StepItem item;
  item.sequence = sequence_.get();
  item.num_tokens = engine_->NextTokens(*sequence_, budget);
  const bool in_prompt = sequence_->computed() < prompt_tokens();
  if (in_prompt && request_.prompt_logprobs) {
    item.output = StepOutput::kAll;
  } else {
    item.output = item.num_tokens == sequence_->pending() ? StepOutput::kLast : StepOutput::kNone;
  }
  if (item.num_tokens > 0) Ask(item);
  item.queries = &queries_;
  return item;
}

// What a pass with `item` finds out besides logits.
void Generation::Ask(const StepItem& item) const {
  queries_ = {};
  queries_.top = std::min(request_.top_logprobs, kMaxTopLogProbs);
  const auto next = static_cast<size_t>(sequence_->computed()) + 1;  // of the item's first row
  if (item.output == StepOutput::kAll && next < request_.prompt.size()) {
    const size_t count = std::min(static_cast<size_t>(item.num_tokens), request_.prompt.size() - next);
    queries_.targets = std::span(request_.prompt).subspan(next, count);
  }
  if (item.output == StepOutput::kNone || item.num_tokens < sequence_->pending() || max_tokens_ == 0) return;
  queries_.pick = MakePick(request_.sampling, counts_.entries(), static_cast<int64_t>(sequence_->ids().size()));
}

int64_t Generation::Accept(const StepItem& item, int64_t first_row) {
  STOCH_CHECK(!done() && item.sequence == sequence_.get());
  int64_t rows = 0;
  if (item.output == StepOutput::kLast) rows = 1;
  if (item.output == StepOutput::kAll) {
    rows = item.num_tokens;
    AcceptPromptLogprobs(item, first_row);
  }
  if (sequence_->pending() == 0) {
    if (result_.ids.empty()) {
      result_.timings.prompt_ms = Milliseconds(Clock::now() - start_);
      KeepPrefix();
    }
    if (max_tokens_ == 0) {
      Finish(FinishReason::kLength);
    } else {
      Pick(first_row + rows - 1);
    }
  }
  return rows;
}

void Generation::AcceptPromptLogprobs(const StepItem& item, int64_t first_row) {
  const int64_t first_position = sequence_->computed() - item.num_tokens;
  for (int64_t i = 0; i < item.num_tokens; ++i) {
    if (static_cast<size_t>(first_position + i + 1) >= request_.prompt.size()) break;
    result_.prompt_logprobs.emplace_back(LogprobOf(first_row + i));
  }
}

TokenLogprob Generation::LogprobOf(int64_t row) const {
  const LogProbAnswer& answer = engine_->LogProb(row);
  TokenLogprob logprob{answer.logprob, {}};
  if (request_.top_logprobs <= kMaxTopLogProbs) {
    for (int32_t i = 0; i < answer.top; ++i) logprob.top.emplace_back(answer.top_ids[i], answer.top_logprobs[i]);
    return logprob;
  }
  std::vector<float> logits(static_cast<size_t>(engine_->config().vocab_size));
  engine_->ReadLogits(row, 1, logits.data());
  logprob.top = TopLogProbs(logits, ComputeLogSum(logits), request_.top_logprobs);
  return logprob;
}

void Generation::KeepPrefix() {
  if (prefixes_ != nullptr) prefixes_->Insert(*sequence_, result_.prompt_logprobs, request_.top_logprobs);
}

void Generation::Pick(int64_t row) {
  const int32_t id = engine_->PickedToken(row);
  if (request_.hash_logits) {
    logits_.resize(static_cast<size_t>(engine_->config().vocab_size));
    engine_->ReadLogits(row, 1, logits_.data());
    hash_.Add(logits_);
  }
  if (request_.top_logprobs >= 0) result_.logprobs.push_back(LogprobOf(row));
  if (result_.ids.empty()) {
    first_token_ = Clock::now();
    result_.timings.ttft_ms = Milliseconds(first_token_ - start_);
  }
  if (HasPenalties(request_.sampling)) counts_.AddGenerated(id);
  Emit(id);
}

void Generation::Emit(int32_t id) {
  result_.ids.push_back(id);
  if (IsStopId(id)) return Finish(FinishReason::kStop);
  if (decoder_) ready_ += stop_strings_.Push(decoder_->Push(id));
  if (stop_strings_.stopped()) return Finish(FinishReason::kStop);
  if (static_cast<int64_t>(result_.ids.size()) == max_tokens_) return Finish(FinishReason::kLength);
  sequence_->Append({&id, 1});
}

bool Generation::IsStopId(int32_t id) const {
  return std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end();
}

void Generation::Finish(FinishReason reason) {
  if (decoder_ && !stop_strings_.stopped()) {
    ready_ += stop_strings_.Push(decoder_->Flush());
    ready_ += stop_strings_.Flush();
  }
  result_.finish_reason = reason;
  if (request_.hash_logits) result_.logits_sha256 = hash_.Hex();
  if (!result_.ids.empty()) {
    Timings& timings = result_.timings;
    timings.decode_ms = Milliseconds(Clock::now() - first_token_);
    const auto steps = static_cast<double>(result_.ids.size() - 1);
    timings.ms_per_token = steps > 0 ? timings.decode_ms / steps : 0;
  }
  result_.text += ready_;
  KeepPrefix();
}

std::string Generation::TakeText() {
  if (!done()) result_.text += ready_;
  return std::exchange(ready_, {});
}

void Generation::Cancel() {
  if (!done()) Finish(FinishReason::kCancelled);
}

GenerateResult Generate(Engine& engine, const Tokenizer* tokenizer, const GenerateRequest& request,
                        const GenerateCallbacks& callbacks) {
  Generation generation(engine, tokenizer, request);
  while (!generation.done()) {
    if (callbacks.cancel != nullptr && callbacks.cancel->load()) {
      generation.Cancel();
      break;
    }
    const bool in_prompt = generation.prompt_done() < generation.prompt_tokens();
    const StepItem item = generation.Next(engine.shape().max_rows);
    STOCH_CHECK(item.num_tokens > 0);
    engine.Step({&item, 1});
    generation.Accept(item, 0);
    if (in_prompt && callbacks.on_prompt) callbacks.on_prompt(generation.prompt_done(), generation.prompt_tokens());
    const std::string text = generation.TakeText();
    if (!text.empty() && callbacks.on_text) callbacks.on_text(text);
  }
  const std::string rest = generation.TakeText();
  if (!rest.empty() && callbacks.on_text) callbacks.on_text(rest);
  return generation.result();
}

}  // namespace stoch
