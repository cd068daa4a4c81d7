// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/completion_exchange.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/serve/http/request_error.h"

namespace stoch::serve {
namespace {

constexpr int kOk = 200;
constexpr int kClientClosed = 499;  // nginx's number, in logs only: nobody is there to read it
constexpr int kTooManyRequests = 429;
constexpr int kInternalError = 500;
constexpr int kUnavailable = 503;
// Sent and not taken by the system yet: no more JSON is made before some of it has left.
constexpr size_t kMuchBytes = 256 << 10;

}  // namespace

CompletionExchange::CompletionExchange(CompletionRequest request, const ModelFacts& model, std::string fingerprint,
                                       JobRunner& runner, std::shared_ptr<Connection> connection,
                                       std::string request_id, Metrics& metrics, const LogSink& log)
    : request_(std::move(request)),
      model_(model),
      runner_(runner),
      connection_(std::move(connection)),
      request_id_(std::move(request_id)),
      metrics_(metrics),
      log_(log),
      start_(std::chrono::steady_clock::now()) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  frame_.id = (request_.chat ? "chatcmpl-" : "cmpl-") + request_id_;
  frame_.chat = request_.chat;
  frame_.model = model.id;
  frame_.created = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  frame_.fingerprint = std::move(fingerprint);
  frame_.seed = static_cast<int64_t>(request_.generate.sampling.seed);
  frame_.date = request_.date;
  unfinished_ = request_.num_choices();
  for (size_t i = 0; i < request_.num_choices(); ++i) {
    choices_.emplace_back(LogprobWriter(model.tokenizer, request_.chat));
  }
}

void CompletionExchange::Start() {
  std::vector<Job> jobs;
  for (size_t i = 0; i < choices_.size(); ++i) {
    jobs.push_back({[self = shared_from_this(), i] { return self->request_.Choice(i); },
                    [self = shared_from_this(), i](JobUpdate update) {
                      const auto now = std::chrono::steady_clock::now();
                      auto shared = std::make_shared<JobUpdate>(std::move(update));
                      self->connection_->Post([self, i, shared, now] { self->OnUpdate(i, std::move(*shared), now); });
                    }});
  }
  const JobRunner::Submission submission = runner_.Submit(std::move(jobs));
  if (submission.refusal == Refusal::kFull) {
    throw RequestError(kTooManyRequests, "", "the queue is full; try again in a moment");
  }
  if (submission.refusal == Refusal::kClosed) {
    throw RequestError(kUnavailable, "", "the server is shutting down and takes no new requests");
  }
  if (submission.refusal == Refusal::kFailed) {
    throw RequestError(kUnavailable, "", "the engine failed; the server is going down");
  }
  first_job_ = submission.first;
  if (!request_.stream) return;
  // However long it waits for its turn: proxies and clients give up on connections that say nothing.
  head_sent_ = true;
  connection_->StartEvents({{"X-Request-Id", request_id_}});
}

void CompletionExchange::OnDisconnect() {
  if (ended_) return;
  ended_ = true;
  CancelJobs();
  Log(kClientClosed, "disconnected");
}

void CompletionExchange::CancelJobs() {
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i].finish.empty()) continue;
    runner_.Cancel(first_job_ + i);
    metrics_.CountFinished("cancelled");
  }
}

void CompletionExchange::OnUpdate(size_t index, JobUpdate update, std::chrono::steady_clock::time_point when) {
  Choice& choice = choices_[index];
  if (ended_ || !choice.finish.empty()) return;  // cancelled, also where its text met a stop string
  try {
    if (update.error_status != 0) {
      choice.finish = "error";
      metrics_.CountFinished(choice.finish);
      return FailWith(update.error_status, update.error);
    }
    if (!choice.begun) Begin(index, update);
    const std::string text = TakeText(choice, update);
    Measure(choice, update, when);
    if (!update.ids.empty()) choice.last_token = when;
    Take(index, std::move(update), text);
    if (!request_.stream) {
      if (unfinished_ == 0) SendWhole();
      return;
    }
    if (!choice.queued) {
      choice.queued = true;
      to_send_.push_back(index);
    }
    // The echo does not count: no client can have read it before it is sent.
    if (lag_bytes_ > static_cast<int64_t>(connection_->max_backlog())) return connection_->Cut();
    if (!waiting_) SendEvents();
  } catch (const std::bad_alloc&) {
    OutOfMemory();
  }
}

void CompletionExchange::Measure(const Choice& choice, const JobUpdate& update,
                                 std::chrono::steady_clock::time_point when) {
  const auto seconds = [&](std::chrono::steady_clock::time_point since) {
    return std::chrono::duration<double>(when - since).count();
  };
  if (!update.ids.empty()) {
    metrics_.AddGeneratedTokens(static_cast<int64_t>(update.ids.size()));
    if (choice.generated == 0) {
      metrics_.ObserveTimeToFirstToken(seconds(start_));
    } else {
      metrics_.ObserveInterToken(seconds(choice.last_token));
    }
  }
  if (update.last()) metrics_.ObserveEndToEnd(seconds(start_));
}

void CompletionExchange::Begin(size_t index, const JobUpdate& update) {
  Choice& choice = choices_[index];
  const Prompt& prompt = request_.prompt_of(index);
  const auto alternatives = std::max<int64_t>(0, request_.generate.top_logprobs);
  choice.begun = true;
  choice.stream.emplace(model_.tokenizer, prompt.ids, request_.generate.stop);
  metrics_.ObserveQueueTime(update.queue_seconds);
  metrics_.AddPromptTokens(static_cast<int64_t>(prompt.ids.size()));
  metrics_.AddReusedTokens(update.reused_tokens);
  if (request_.echo) choice.text = prompt.text;
  if (!request_.wants_logprobs()) return;
  if (!request_.echo) choice.writer.GoOnFrom(prompt.ids);
  const size_t tokens = (request_.echo ? prompt.ids.size() : 0) + update.ids.size();
  choice.tokens.Reserve(tokens, tokens * static_cast<size_t>(alternatives));
  for (size_t i = 0; request_.echo && i < prompt.ids.size(); ++i) {
    const bool known = i < update.prompt_logprobs.size() && update.prompt_logprobs[i].has_value();
    choice.tokens.Add(prompt.ids[i], known ? &*update.prompt_logprobs[i] : nullptr);
  }
}

// The text of the update's ids. Where it meets a stop string, the update ends with the id that completes it, and the
// job is cancelled.
std::string CompletionExchange::TakeText(Choice& choice, JobUpdate& update) {
  std::string text;
  for (size_t i = 0; i < update.ids.size(); ++i) {
    const bool stop_id = update.finish == FinishReason::kStop && i + 1 == update.ids.size();
    if (!stop_id) text += choice.stream->Push(update.ids[i]);
    if (!choice.stream->stopped()) continue;
    update.ids.resize(i + 1);
    if (!update.logprobs.empty()) update.logprobs.resize(i + 1);
    if (!update.last()) runner_.Cancel(first_job_ + static_cast<size_t>(&choice - choices_.data()));
    update.finish = FinishReason::kStop;
    return text;
  }
  if (update.last()) text += choice.stream->Finish();
  return text;
}

void CompletionExchange::Take(size_t index, JobUpdate update, const std::string& text) {
  constexpr int64_t kValueBytes = 32;  // of JSON, about
  Choice& choice = choices_[index];
  const auto alternatives = std::max<int64_t>(0, request_.generate.top_logprobs);
  choice.generated += static_cast<int64_t>(update.ids.size());
  choice.text += text;
  int64_t lag = static_cast<int64_t>(text.size());
  for (size_t i = 0; request_.wants_logprobs() && i < update.ids.size(); ++i) {
    choice.tokens.Add(update.ids[i], &update.logprobs[i]);
    lag += kValueBytes * (1 + alternatives);
  }
  choice.lag_bytes += lag;
  lag_bytes_ += lag;
  if (!update.last()) return;
  choice.finish = FinishReasonName(update.finish);
  choice.logits_sha256 = update.logits_sha256;
  choice.stream.reset();
  metrics_.CountFinished(choice.finish);
  --unfinished_;
}

void CompletionExchange::WaitForRoom(void (CompletionExchange::*then)()) {
  waiting_ = true;
  connection_->WhenDrained([self = shared_from_this(), then] {
    self->waiting_ = false;
    if (self->ended_) return;
    try {
      (self.get()->*then)();
    } catch (const std::bad_alloc&) {
      self->OutOfMemory();
    }
  });
}

// ---------------------------------------------------------------------------------------------------- streams ----

// Text may be held back (half a character, a possible stop string): nothing to say until it is certain.
bool CompletionExchange::HasMore(const Choice& choice) const {
  return !choice.text.empty() || choice.sent < choice.tokens.size() || !choice.finish.empty() || !choice.started;
}

void CompletionExchange::SendEvents() {
  while (!to_send_.empty() && !ended_) {
    if (connection_->backlog() > kMuchBytes) return WaitForRoom(&CompletionExchange::SendEvents);
    const size_t index = to_send_.front();
    to_send_.pop_front();
    Choice& choice = choices_[index];
    choice.queued = false;
    if (!HasMore(choice)) continue;
    SendChunk(index);
    if (choice.sent < choice.tokens.size()) {
      choice.queued = true;
      to_send_.push_back(index);
    }
  }
  if (unfinished_ == 0 && !ended_) EndStream();
}

void CompletionExchange::SendChunk(size_t index) {
  Choice& choice = choices_[index];
  const size_t end = std::min(choice.tokens.size(), choice.sent + PieceTokens(request_.generate.top_logprobs));
  OrderedJson body = frame_.Body(true);
  body["choices"] = OrderedJson::array(
      {ChunkChoice(request_.chat, index, choice, request_.wants_logprobs(), choice.sent, end, !choice.started)});
  if (request_.include_usage) body["usage"] = nullptr;
  choice.started = true;
  choice.text.clear();
  choice.sent = end;
  if (choice.sent == choice.tokens.size()) {
    choice.tokens.Clear();
    choice.sent = 0;
    lag_bytes_ -= choice.lag_bytes;
    choice.lag_bytes = 0;
  }
  SendEvent(Dump(body));
}

void CompletionExchange::SendEvent(const std::string& data) {
  connection_->SendEvent(frame_.id + ":" + std::to_string(events_++), data);
}

void CompletionExchange::EndStream() {
  if (request_.include_usage) {
    OrderedJson body = frame_.Body(true);
    body["choices"] = OrderedJson::array();
    body["usage"] = UsageJson(TotalUsage());
    SendEvent(Dump(body));
  }
  SendEvent("[DONE]");
  ended_ = true;
  connection_->EndEvents();
  LogEnd();
}

// ---------------------------------------------------------------------------------------------- whole answers ----

void CompletionExchange::SendWhole() {
  std::vector<AnswerChoice*> choices;
  for (Choice& choice : choices_) choices.push_back(&choice);
  whole_.emplace(frame_, std::move(choices), request_.generate.top_logprobs, TotalUsage());
  std::string body;
  std::string piece = whole_->Next();
  for (; !piece.empty() && body.size() <= kMuchBytes; piece = whole_->Next()) body += piece;
  const HttpHeaders headers = {{"X-Request-Id", request_id_}};
  if (piece.empty()) {
    ended_ = true;
    connection_->Send({kOk, "application/json", std::move(body), headers});
    return LogEnd();
  }
  head_sent_ = true;
  connection_->StartPieces({kOk, "application/json", "", headers});
  connection_->SendPiece(std::move(body));
  connection_->SendPiece(std::move(piece));
  SendPieces();
}

void CompletionExchange::SendPieces() {
  while (connection_->backlog() <= kMuchBytes) {
    std::string piece = whole_->Next();
    if (piece.empty()) {
      ended_ = true;
      connection_->EndPieces();
      return LogEnd();
    }
    connection_->SendPiece(std::move(piece));
  }
  WaitForRoom(&CompletionExchange::SendPieces);
}

// ---------------------------------------------------------------------------------------------------- the end ----

void CompletionExchange::LogEnd() {
  std::string finish;
  for (const Choice& choice : choices_) {
    if (finish.find(choice.finish) == std::string::npos) finish += (finish.empty() ? "" : ",") + choice.finish;
  }
  Log(kOk, finish);
}

void CompletionExchange::FailWith(int status, const std::string& message) {
  ended_ = true;
  CancelJobs();
  const std::string body = ErrorText(status, message, "");
  if (!head_sent_) {
    connection_->Send({status, "application/json", body, {{"X-Request-Id", request_id_}}});
  } else if (request_.stream) {
    SendEvent(body);
    SendEvent("[DONE]");
    connection_->EndEvents();
  } else {
    connection_->Cut();  // half an answer must not look like one
  }
  Log(status, "error: " + message);
}

// Whatever it holds goes first; if even the error cannot be said then, the client hears of it by the end of the line.
void CompletionExchange::OutOfMemory() noexcept {
  try {
    for (Choice& choice : choices_) {
      choice.tokens.Clear();
      choice.text = {};
    }
    FailWith(kInternalError, "out of memory");
  } catch (const std::exception&) {
    ended_ = true;
    connection_->Cut();  // throws nothing
  }
}

Usage CompletionExchange::TotalUsage() const {
  Usage usage;
  for (const Prompt& prompt : request_.prompts) usage.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  for (const Choice& choice : choices_) usage.completion_tokens += choice.generated;
  return usage;
}

void CompletionExchange::Log(int status, const std::string& finish) {
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start_;
  const Usage usage = TotalUsage();
  log_({status >= 500 ? LogLevel::kError : LogLevel::kInfo,
        request_.chat ? "chat_completion" : "completion",
        {{"id", request_id_},
         {"status", std::to_string(status)},
         {"choices", std::to_string(choices_.size())},
         {"stream", request_.stream ? "1" : "0"},
         {"prompt_tokens", std::to_string(usage.prompt_tokens)},
         {"completion_tokens", std::to_string(usage.completion_tokens)},
         {"ms", std::to_string(static_cast<int64_t>(elapsed.count()))},
         {"finish", finish}}});
}

}  // namespace stoch::serve
