// SPDX-License-Identifier: Apache-2.0
// The events of a stream, and how it is taken up again (completion_exchange.cc has the rest).

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/serve/completion_exchange.h"
#include "engine/serve/http/request_error.h"

namespace stoch::serve {
namespace {

constexpr int kBadRequest = 400;
constexpr int kUnavailable = 503;

// Ids of a choice that came in earlier runs of its answer.
std::vector<std::vector<int32_t>> EmittedOf(const AnswerLog::Kept& kept, size_t choices) {
  std::vector<std::vector<int32_t>> emitted(choices);
  for (const AnswerLog::Update& update : kept.updates) {
    std::vector<int32_t>& ids = emitted.at(update.choice);
    ids.insert(ids.end(), update.update.ids.begin(), update.update.ids.end());
  }
  return emitted;
}

}  // namespace

void CompletionExchange::Resume(AnswerLog::Kept kept, int64_t seen) {
  kept_ = kept.key;
  seen_ = seen;
  head_sent_ = true;
  connection_->StartEvents(StreamHeaders());
  const std::vector<std::vector<int32_t>> emitted = EmittedOf(kept, choices_.size());
  live_ = false;
  for (AnswerLog::Update& update : kept.updates) {
    OnKeptUpdate(update.choice, std::move(update.update));
  }
  live_ = true;
  if (!waiting_ && !ended_) SendEvents();
  if (ended_ || failure_.status != 0 || unfinished_ == 0) return;
  for (Choice& choice : choices_) choice.last_token = start_;
  const bool begun = std::any_of(choices_.begin(), choices_.end(), [&](const Choice& choice) { return choice.begun; });
  if (begun && model_.precision == "fp16") {
    return FailWith(kUnavailable, "fp16 does not promise the same tokens again, so this stream cannot go on");
  }
  const Failure refused = Submit(emitted);
  if (refused.status != 0) FailWith(kUnavailable, refused.message);
}

// One that an earlier exchange has had. What it brings waits for the client as long as it takes.
void CompletionExchange::OnKeptUpdate(size_t index, JobUpdate update) {
  Choice& choice = choices_[index];
  if (ended_ || failure_.status != 0 || !choice.finish.empty()) return;
  if (update.error_status != 0) return TakeFailure(choice, update);
  if (!choice.begun) Begin(index, update);
  for (JobUpdate& token : ByToken(std::move(update))) {
    if (!choice.finish.empty()) return;
    const std::string text = TakeText(choice, token);
    Take(index, std::move(token), text);
    Queue(index, 0);
  }
}

// One update a token, in order: a token of a stream is an event, however many of them a pass brought. A run of the answer that
// goes on from any token checks other guesses in its passes, and has to number its events alike.
std::vector<JobUpdate> CompletionExchange::ByToken(JobUpdate update) {
  std::vector<JobUpdate> tokens;
  const size_t count = update.ids.size();
  for (size_t i = 0; i + 1 < count; ++i) {
    JobUpdate& token = tokens.emplace_back();
    token.ids = {update.ids[i]};
    if (!update.logprobs.empty()) token.logprobs = {std::move(update.logprobs[i])};
  }
  if (count > 1) {
    tokens.front().drafted = std::exchange(update.drafted, 0);
    tokens.front().drafts_accepted = std::exchange(update.drafts_accepted, 0);
    update.ids = {update.ids.back()};
    if (!update.logprobs.empty()) update.logprobs = {TokenLogprob(std::move(update.logprobs.back()))};
  }
  tokens.push_back(std::move(update));
  return tokens;
}

void CompletionExchange::AddText(const std::string& text, bool last, Choice* choice) {
  std::string content = text;
  if (choice->splitter) {
    ReasoningSplitter::Piece piece = choice->splitter->Push(text);
    choice->reasoning += piece.reasoning;
    content = std::move(piece.content);
    if (last) {
      piece = choice->splitter->Finish();
      choice->reasoning += piece.reasoning;
      content += piece.content;
    }
  }
  if (!choice->tools) {
    choice->text += content;
    return;
  }
  const auto add = [choice](ToolCallSplitter::Piece piece) {
    choice->text += piece.content;
    std::move(piece.calls.begin(), piece.calls.end(), std::back_inserter(choice->calls));
  };
  add(choice->tools->Push(content));
  if (last) add(choice->tools->Finish());
}

// What the choice has that is in no piece yet.
void CompletionExchange::Queue(size_t index, int64_t lag_bytes) {
  Choice& choice = choices_[index];
  Piece piece;
  piece.choice = index;
  piece.text = std::move(choice.text);
  piece.reasoning = std::move(choice.reasoning);
  piece.calls = std::exchange(choice.calls, {});
  piece.tokens = choice.tokens.size() - choice.sent - choice.waiting;
  piece.last = !choice.finish.empty();
  piece.lag_bytes = lag_bytes;
  choice.text.clear();
  choice.reasoning.clear();
  // Text may be held back (half a character, a possible stop string): nothing to say until it is certain.
  const bool says_nothing = piece.text.empty() && piece.reasoning.empty() && piece.calls.empty();
  if (choice.queued && says_nothing && piece.tokens == 0 && !piece.last) return;
  choice.queued = true;
  choice.waiting += piece.tokens;
  lag_bytes_ += lag_bytes;
  to_send_.push_back(std::move(piece));
}

void CompletionExchange::SendEvents() {
  while (!to_send_.empty() && !ended_) {
    if (connection_->backlog() > kMuchBytes) return WaitForRoom(&CompletionExchange::SendEvents);
    if (!SendChunk(to_send_.front())) continue;
    lag_bytes_ -= to_send_.front().lag_bytes;
    to_send_.pop_front();
  }
  if (ended_) return;
  if (failure_.status != 0) return FailWith(failure_.status, failure_.message);
  if (unfinished_ == 0) EndStream();
}

// Returns: whether that was all of the piece.
bool CompletionExchange::SendChunk(Piece& piece) {
  Choice& choice = choices_[piece.choice];
  const size_t tokens = std::min(piece.tokens, PieceTokens(request_.generate.top_logprobs));
  piece.tokens -= tokens;
  Chunk chunk;
  chunk.text = std::exchange(piece.text, {});
  chunk.reasoning = std::exchange(piece.reasoning, {});
  if (!piece.calls.empty()) chunk.calls = frame_.Calls(true, piece.choice, std::exchange(piece.calls, {}));
  chunk.begin = choice.sent;
  chunk.end = choice.sent + tokens;
  chunk.first = !choice.started;
  chunk.last = piece.last && piece.tokens == 0;
  OrderedJson body = frame_.Body(true);
  body["choices"] =
      OrderedJson::array({ChunkChoice(request_.chat, piece.choice, choice, request_.wants_logprobs(), chunk)});
  if (request_.include_usage) body["usage"] = nullptr;
  choice.started = true;
  choice.waiting -= tokens;
  choice.sent = chunk.end;
  if (choice.sent == choice.tokens.size()) {
    choice.tokens.Clear();
    choice.sent = 0;
  }
  SendEvent(Dump(std::move(body)));
  return piece.tokens == 0;
}

// is_last_again: it stands at the place of the event before it, so that a client that comes again misses none.
void CompletionExchange::SendEvent(const std::string& data, bool is_last_again) {
  if (!is_last_again) ++events_;
  const int64_t number = events_ - 1;
  if (number <= seen_ && !is_last_again) return;
  connection_->SendEvent(number < 0 ? "" : frame_.id + ":" + std::to_string(number), data);
}

void CompletionExchange::EndStream() {
  if (request_.include_usage) {
    OrderedJson body = frame_.Body(true);
    body["choices"] = OrderedJson::array();
    body["usage"] = UsageJson(TotalUsage());
    SendEvent(Dump(std::move(body)));
  }
  SendEvent("[DONE]");
  if (seen_ >= events_) {  // the client names an event that never was
    const std::string last = frame_.id + ":" + std::to_string(events_ - 1);
    connection_->SendEvent("", ErrorText(kBadRequest, "Last-Event-ID: the last event of this stream is " + last, ""));
    connection_->SendEvent("", "[DONE]");
  }
  ended_ = true;
  if (kept_.number != 0) answers_->End(kept_);
  connection_->EndEvents();
  LogEnd();
}

}  // namespace stoch::serve
