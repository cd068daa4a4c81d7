// SPDX-License-Identifier: Apache-2.0
#include "engine/generate.h"

#include <algorithm>
#include <utility>

#include "engine/logprobs.h"
#include "engine/request/text_stream.h"
#include "engine/speculation/pass_drafts.h"
#include "kernels/base/check.h"
#include "kernels/base/error.h"

namespace stoch {
namespace {

void CheckRequest(const Engine& engine, const GenerateRequest& request) {
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
}

double Milliseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

namespace {

// Requests that may share keys and values.
std::string SharingSalt(const GenerateRequest& request) {
  if (request.sequence_number == 0) return request.cache_salt;
  return request.cache_salt + '\0' + std::to_string(request.sequence_number);
}

}  // namespace

Generation::Generation(Engine& engine, GenerateRequest request, PrefixCache* prefixes, bool reserved)
    : engine_(&engine), prefixes_(prefixes), request_(std::move(request)) {
  CheckRequest(engine, request_);
  const int64_t room = engine.shape().context - prompt_tokens();
  max_tokens_ = request_.max_tokens < 0 ? room : std::min(request_.max_tokens, room);
  if (emitted() > 0 && emitted() >= max_tokens_) {
    throw InvalidInput(std::to_string(emitted()) +
                       " emitted tokens leave nothing of max_tokens = " + std::to_string(max_tokens_));
  }

  stop_ids_ = request_.stop_ids;
  if (!request_.ignore_eos) {
    const std::vector<int32_t>& model_eos = engine.config().eos_token_ids;
    stop_ids_.insert(stop_ids_.end(), model_eos.begin(), model_eos.end());
  }
  std::vector<int32_t> given = request_.prompt;
  if (!StepsEmitted()) {
    given.insert(given.end(), request_.emitted.begin(), request_.emitted.end());
    result_.ids = request_.emitted;
  }
  given_ = static_cast<int64_t>(given.size());
  if (emitted() > 0) request_.prompt_logprobs = false;  // told with the first of them
  PrefixCache::Match known;
  if (prefixes_ != nullptr) {
    known = prefixes_->Find(given, request_.prompt_logprobs ? request_.top_logprobs : -1, SharingSalt(request_));
    reused_ = static_cast<int64_t>(known.pages.size()) * kKvPageTokens;
    prefixes_->MakeRoom((reserved ? prompt_tokens() + max_tokens_ : given_) - reused_, known.pages);
  }
  sequence_ = engine.NewSequence(prompt_tokens() + max_tokens_, given, known.pages, reserved);
  if (sequence_ == nullptr) throw InvalidInput("the KV cache has no room for another sequence just now");
  sequence_->set_number(request_.sequence_number);
  if (HasPenalties(request_.sampling)) {
    counts_.AddPrompt(request_.prompt);
    for (const int32_t id : result_.ids) counts_.AddGenerated(id);
  }
  if (!request_.grammar.empty()) BeginGuide();
  // Guesses that the grammar forbids would cost more than they bring.
  if (engine.options().draft_tokens > 0 && guide_ == nullptr) draft_source_ = engine.options().make_drafts();
  result_.prompt_logprobs = std::move(known.logprobs);
  if (request_.prompt_logprobs && reused_ == 0) result_.prompt_logprobs.emplace_back();
  start_ = first_token_ = Clock::now();
  if (max_tokens_ == 0 && !request_.prompt_logprobs) Finish(FinishReason::kLength);
}

void Generation::BeginGuide() {
  Validate(request_.grammar);
  if (!engine_->options().make_guide) {
    throw InvalidInput("a grammar needs a tokenizer, and a build with grammars");
  }
  guide_ = engine_->options().make_guide(request_.grammar, stop_ids_);
  mask_.assign(static_cast<size_t>(TokenMaskWords(engine_->config().vocab_size)), ~0u);
}

// Writes the mask of the next pick while the device runs the layers. If the guide throws, Accept throws that error.
void Generation::FillMask() {
  if (is_filled_ && guided_ == result_.ids.size()) return;
  is_filled_ = false;
  try {
    for (; guided_ < result_.ids.size(); ++guided_) guide_->Accept(result_.ids[guided_]);
    guide_->Fill(mask_);
    is_filled_ = true;
  } catch (...) {
    guide_error_ = std::current_exception();
    std::fill(mask_.begin(), mask_.end(), ~0u);
  }
}

// Whether emitted ids are stepped as they were at first, one in each pass.
bool Generation::StepsEmitted() const { return request_.hash_logits || !engine_->chunk_invariant(); }

int64_t Generation::prompt_done() const { return std::min(sequence_->computed(), prompt_tokens()); }

// Tokens of the sequence that are certain: the prompt and the ids that were picked.
int64_t Generation::IdsWithoutDrafts() const { return static_cast<int64_t>(sequence_->ids().size()) - drafts_; }

void Generation::ForgetDrafts() {
  if (drafts_ > 0) sequence_->Truncate(IdsWithoutDrafts());
  drafts_ = 0;
}

DraftTurn Generation::Turn() {
  STOCH_CHECK(!done());
  ForgetDrafts();
  DraftTurn turn;
  const auto picked = static_cast<int64_t>(result_.ids.size());
  if (draft_source_ == nullptr || prefilling() || sequence_->pending() != 1 || picked < emitted()) return turn;
  turn.source = draft_source_.get();
  turn.ids = sequence_->ids();
  turn.generated = picked;
  turn.left = max_tokens_ - picked;
  turn.most = std::min(engine_->options().draft_tokens, turn.left - 1);  // a pass picks one more after the last draft
  return turn;
}

StepItem Generation::Next(int64_t budget, std::span<const DraftedToken> drafts) {
  STOCH_CHECK(!done());
  ForgetDrafts();
  if (!drafts.empty()) {
    const int64_t end = sequence_->computed() + 1;
    const int64_t wanted = std::min(static_cast<int64_t>(drafts.size()), budget - 1);
    // No other sequence gives its pages for a guess.
    const bool has_room = end + wanted <= sequence_->room() || sequence_->Grow(end + wanted);
    drafts_ = std::max<int64_t>(0, has_room ? wanted : std::min(wanted, sequence_->room() - end));
    for (int64_t i = 0; i < drafts_; ++i) sequence_->Append({&drafts[static_cast<size_t>(i)].id, 1});
  }
  StepItem item;
  item.sequence = sequence_.get();
  item.num_tokens = engine_->NextTokens(*sequence_, budget);
  const bool in_prompt = sequence_->computed() < prompt_tokens();
  if ((in_prompt && request_.prompt_logprobs) || drafts_ > 0) {
    item.output = StepOutput::kAll;
  } else {
    item.output = item.num_tokens == sequence_->pending() ? StepOutput::kLast : StepOutput::kNone;
  }
  if (item.num_tokens > 0) Ask(item);
  item.queries = &queries_;
  return item;
}

// What a pass with `item` finds out besides logits.
void Generation::Ask(const StepItem& item) {
  queries_ = {};
  queries_.top = std::min(request_.top_logprobs, kMaxTopLogProbs);
  const auto next = static_cast<size_t>(sequence_->computed()) + 1;  // of the item's first row
  if (item.output == StepOutput::kAll && next < request_.prompt.size()) {
    const size_t count = std::min(static_cast<size_t>(item.num_tokens), request_.prompt.size() - next);
    queries_.targets = std::span(request_.prompt).subspan(next, count);
  }
  if (item.output == StepOutput::kNone || item.num_tokens < sequence_->pending() || max_tokens_ == 0) return;
  AskPicks();
}

// The token after each draft, as if it was picked, and before the first.
void Generation::AskPicks() {
  const int64_t position = IdsWithoutDrafts();
  queries_.picks.push_back(MakePick(request_.sampling, counts_.entries(), position));
  if (guide_ != nullptr) {
    queries_.picks.back().allowed = mask_;
    queries_.fill_masks = [this] { FillMask(); };
  }
  draft_counts_.clear();
  TokenCounts counts = HasPenalties(request_.sampling) && drafts_ > 0 ? counts_ : TokenCounts{};
  for (int64_t i = 0; i < drafts_; ++i) {
    counts.AddGenerated(sequence_->ids()[static_cast<size_t>(position + i)]);
    draft_counts_.emplace_back(counts.entries().begin(), counts.entries().end());
    queries_.picks.push_back(MakePick(request_.sampling, draft_counts_.back(), position + i + 1));
  }
}

int64_t Generation::Accept(const StepItem& item, int64_t first_row, const std::function<bool(int32_t)>& on_id) {
  STOCH_CHECK(!done() && item.sequence == sequence_.get());
  int64_t rows = 0;
  if (item.output == StepOutput::kLast) rows = 1;
  if (item.output == StepOutput::kAll) {
    rows = item.num_tokens;
    AcceptPromptLogprobs(item, first_row);
  }
  if (sequence_->pending() == 0) {
    if (static_cast<int64_t>(sequence_->ids().size()) == given_) {
      result_.timings.prompt_ms = Milliseconds(Clock::now() - start_);
      KeepPrefix();
    }
    if (max_tokens_ == 0) {
      Finish(FinishReason::kLength);
    } else {
      AcceptPicks(first_row + rows, on_id);
    }
  }
  return rows;
}

// Picks after the rows before `end_row`: the first, and after each draft that was picked one more.
void Generation::AcceptPicks(int64_t end_row, const std::function<bool(int32_t)>& on_id) {
  if (guide_error_) std::rethrow_exception(guide_error_);
  const int64_t drafted = drafts_;
  if (drafted > 0) {
    ++result_.drafts.passes;
    result_.drafts.drafted += drafted;
  }
  for (int64_t row = end_row - 1 - drafted; row < end_row; ++row) {
    const bool was_drafted = Pick(row);
    if (was_drafted) ++result_.drafts.accepted;
    const bool is_text = result_.finish_reason != FinishReason::kStop;
    if (is_text && on_id && !on_id(result_.ids.back())) Finish(FinishReason::kStop);
    if (!was_drafted || done()) break;
  }
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
  if (prefixes_ == nullptr) return;
  prefixes_->Insert(*sequence_, result_.prompt_logprobs, request_.top_logprobs, SharingSalt(request_));
}

bool Generation::Pick(int64_t row) {
  int32_t id = engine_->PickedToken(row);
  const bool again = result_.ids.size() < request_.emitted.size();  // told before; what follows is what counts
  if (again) id = request_.emitted[result_.ids.size()];
  if (request_.hash_logits) {
    logits_.resize(static_cast<size_t>(engine_->config().vocab_size));
    engine_->ReadLogits(row, 1, logits_.data());
    hash_.Add(logits_);
  }
  if (request_.top_logprobs >= 0 && !again) result_.logprobs.push_back(LogprobOf(row));
  if (result_.ids.empty()) {
    first_token_ = Clock::now();
    result_.timings.ttft_ms = Milliseconds(first_token_ - start_);
  }
  if (HasPenalties(request_.sampling)) counts_.AddGenerated(id);
  return Emit(id);
}

// Returns: whether it is the next draft, which is none any longer. Where it is not, the drafts are forgotten.
bool Generation::Emit(int32_t id) {
  const bool drafted = drafts_ > 0 && sequence_->ids()[static_cast<size_t>(IdsWithoutDrafts())] == id;
  result_.ids.push_back(id);
  if (IsStopId(id)) {
    Finish(FinishReason::kStop);
  } else if (static_cast<int64_t>(result_.ids.size()) == max_tokens_) {
    Finish(FinishReason::kLength);
  } else if (drafted) {
    --drafts_;
  } else {
    ForgetDrafts();
    sequence_->Append({&id, 1});
  }
  return drafted;
}

bool Generation::IsStopId(int32_t id) const {
  return std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end();
}

void Generation::Finish(FinishReason reason) {
  result_.finish_reason = reason;
  ForgetDrafts();
  if (request_.hash_logits) result_.logits_sha256 = hash_.Hex();
  if (!result_.ids.empty()) {
    Timings& timings = result_.timings;
    timings.decode_ms = Milliseconds(Clock::now() - first_token_);
    const auto steps = static_cast<double>(result_.ids.size() - 1);
    timings.ms_per_token = steps > 0 ? timings.decode_ms / steps : 0;
  }
  KeepPrefix();
}

void Generation::Cancel() {
  if (!done()) Finish(FinishReason::kCancelled);
}

GenerateRequest Generation::Rest() {
  STOCH_CHECK(!done());
  KeepPrefix();
  if (result_.ids.size() > request_.emitted.size()) request_.emitted = result_.ids;
  return std::move(request_);
}

std::vector<std::vector<DraftedToken>> DraftsForPass(std::span<Generation* const> generations, const PassTimes& times) {
  const auto prefills = [](const Generation* generation) { return generation->prefilling(); };
  if (generations.empty() || std::any_of(generations.begin(), generations.end(), prefills)) {
    return std::vector<std::vector<DraftedToken>>(generations.size());
  }
  std::vector<DraftTurn> turns;
  for (Generation* generation : generations) turns.push_back(generation->Turn());
  return DraftsForTurns(turns, MaxPicks(generations.front()->engine().shape()), times);
}

namespace {

// A pass of one generation, with drafts where they pay.
StepItem StepAlone(Engine& engine, Generation& generation, PassTimes& times) {
  const bool decodes = !generation.prefilling();
  Generation* const alone = &generation;
  const StepItem item = generation.Next(engine.shape().max_rows, DraftsForPass({&alone, 1}, times).front());
  STOCH_CHECK(item.num_tokens > 0);
  const auto start = std::chrono::steady_clock::now();
  engine.Step({&item, 1});
  const double ms = Milliseconds(std::chrono::steady_clock::now() - start);
  if (decodes) {
    times.Add(item.num_tokens, ms);
  } else {
    times.AddPrompt(item.num_tokens, ms);
  }
  return item;
}

}  // namespace

GenerateResult Generate(Engine& engine, const Tokenizer* tokenizer, const GenerateRequest& request,
                        const GenerateCallbacks& callbacks) {
  GenerateRequest asked = request;
  AddTokenizerStops(tokenizer, &asked);
  TextStream stream(tokenizer, request.prompt, request.stop);
  std::string text;
  const auto tell = [&](const std::string& piece) {
    text += piece;
    if (!piece.empty() && callbacks.on_text) callbacks.on_text(piece);
  };
  Generation generation(engine, std::move(asked));
  PassTimes times;
  const auto on_id = [&](int32_t id) {
    tell(stream.Push(id));
    return !stream.stopped();
  };
  while (!generation.done()) {
    if (callbacks.cancel != nullptr && callbacks.cancel->load()) {
      generation.Cancel();
      break;
    }
    const bool in_prompt = generation.prompt_done() < generation.prompt_tokens();
    const StepItem item = StepAlone(engine, generation, times);
    if (in_prompt && callbacks.on_prompt) callbacks.on_prompt(generation.prompt_done(), generation.prompt_tokens());
    generation.Accept(item, 0, on_id);
  }
  tell(stream.Finish());
  GenerateResult result = generation.result();
  result.text = std::move(text);
  return result;
}

}  // namespace stoch
