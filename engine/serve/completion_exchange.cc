// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/completion_exchange.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/serve/http/request_error.h"
#include "engine/serve/random_id.h"

namespace stoch::serve {
namespace {

constexpr int kOk = 200;
constexpr int kClientClosed = 499;  // nginx's number, in logs only: nobody is there to read it
constexpr int kTooManyRequests = 429;
constexpr int kInternalError = 500;
constexpr int kUnavailable = 503;
constexpr size_t kShownDigits = 12;  // of an answer's id in logs: all of them are a key to its stream

StoredRequest NewAnswer(CompletionRequest request, const ModelFacts& model, std::string fingerprint) {
  StoredRequest answer;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  answer.frame.id = (request.chat ? "chatcmpl-" : "cmpl-") + RandomId();
  answer.frame.chat = request.chat;
  answer.frame.model = model.id;
  answer.frame.created = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  answer.frame.fingerprint = std::move(fingerprint);
  answer.frame.seed = request.generate.sampling.seed;
  answer.frame.negative_seed = request.negative_seed;
  answer.frame.date = request.date;
  answer.request = std::move(request);
  return answer;
}

}  // namespace

CompletionExchange::CompletionExchange(const Answering& server, CompletionRequest request, std::string fingerprint,
                                       Client client)
    : CompletionExchange(server, NewAnswer(std::move(request), server.model, std::move(fingerprint)),
                         std::move(client)) {}

CompletionExchange::CompletionExchange(const Answering& server, StoredRequest stored, Client client)
    : request_(std::move(stored.request)),
      model_(server.model),
      runner_(server.runner),
      metrics_(server.metrics),
      log_(server.log),
      answers_(server.answers),
      connection_(std::move(client.connection)),
      request_id_(std::move(client.request_id)),
      owner_(std::move(client.owner)),
      address_(std::move(client.address)),
      start_(std::chrono::steady_clock::now()),
      frame_(std::move(stored.frame)) {
  unfinished_ = request_.num_choices();
  for (size_t i = 0; i < request_.num_choices(); ++i) {
    choices_.emplace_back(LogprobWriter(model_.tokenizer, request_.chat));
  }
}

// Jobs for what is not finished. emitted: of each choice, what it goes on from.
CompletionExchange::Failure CompletionExchange::Submit(const std::vector<std::vector<int32_t>>& emitted) {
  std::vector<Job> jobs;
  std::vector<Choice*> asked;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i].finish.empty()) continue;
    Job& job = jobs.emplace_back();
    job.request = [self = shared_from_this(), i, before = emitted[i]] {
      GenerateRequest request = self->request_.Choice(i);
      request.emitted = before;
      return request;
    };
    job.on_update = [self = shared_from_this(), i](JobUpdate update) {
      const auto now = std::chrono::steady_clock::now();
      // An event of a stream is little work; a whole answer may be much.
      const bool here = update.has_time && self->request_.stream;
      try {
        auto shared = std::make_shared<JobUpdate>(std::move(update));
        auto body = [self, i, shared, now] { self->OnUpdate(i, std::move(*shared), now); };
        if (here) {
          self->connection_->Run(std::move(body));
        } else {
          self->connection_->Post(std::move(body));
        }
      } catch (const std::bad_alloc&) {  // an answer with a hole is none
        self->connection_->Cut();
      }
    };
    job.kept = {kept_, i};
    job.name = request_id_ + "/" + std::to_string(i);
    job.client = owner_.empty() ? address_ : owner_;
    asked.push_back(&choices_[i]);
  }
  const JobRunner::Submission submission = runner_.Submit(std::move(jobs));
  switch (submission.refusal) {
    case Refusal::kFullForClient:
      return {kTooManyRequests, "as many requests of this client wait as may; try again in a moment"};
    case Refusal::kFull: return {kTooManyRequests, "the queue is full; try again in a moment"};
    case Refusal::kClosed: return {kUnavailable, "the server is shutting down and takes no new requests"};
    case Refusal::kFailed: return {kUnavailable, "the engine failed; the server is going down"};
    case Refusal::kNone: break;
  }
  for (size_t i = 0; i < asked.size(); ++i) asked[i]->job = submission.first + i;
  return {};
}

void CompletionExchange::Start() {
  AnswerLog* const answers = request_.stream ? answers_ : nullptr;
  if (answers != nullptr) kept_ = answers->Begin({frame_.id, owner_});
  const Failure refused = Submit(std::vector<std::vector<int32_t>>(choices_.size()));
  if (refused.status != 0) {
    if (answers != nullptr && kept_.number != 0) answers->Forget(kept_);
    throw RequestError(refused.status, "", refused.message);
  }
  if (!request_.stream) return;
  try {
    // Kept before anybody hears of it, and while its prompt runs.
    if (answers != nullptr && kept_.number != 0) answers->Commit(kept_, Store({request_, frame_}));
    // However long it waits for its turn: proxies and clients give up on connections that say nothing.
    head_sent_ = true;
    connection_->StartEvents(StreamHeaders());
  } catch (const std::bad_alloc&) {  // who asked is told so, and nothing else
    ended_ = true;
    CancelJobs();
    throw;
  }
}

// A client that is cut off before the first event knows the stream all the same.
HttpHeaders CompletionExchange::StreamHeaders() const {
  HttpHeaders headers = {{"X-Request-Id", request_id_}};
  if (kept_.number != 0) headers.emplace_back("X-Stream-Id", frame_.id);
  return headers;
}

void CompletionExchange::AskToGiveWay() {
  connection_->Post([self = shared_from_this()] { self->GiveWay(); });
}

void CompletionExchange::GiveWay() {
  if (ended_) return;
  ended_ = true;
  CancelJobs();
  connection_->Cut();
  Log(kClientClosed, "taken over");
}

void CompletionExchange::OnDisconnect() {
  if (ended_) return;
  ended_ = true;
  if (kept_.number != 0) answers_->Leave(kept_);
  CancelJobs();
  Log(kClientClosed, "disconnected");
}

void CompletionExchange::CancelJobs() {
  for (const Choice& choice : choices_) {
    if (!choice.finish.empty()) continue;
    if (choice.job != 0) runner_.Cancel(choice.job);
    CountFinished("cancelled");
  }
}

void CompletionExchange::CountFinished(const std::string& reason) {
  if (live_) metrics_.CountFinished(reason);
}

void CompletionExchange::OnUpdate(size_t index, JobUpdate update, std::chrono::steady_clock::time_point when) {
  Choice& choice = choices_[index];
  // Cancelled, also where its text met a stop string.
  if (ended_ || failure_.status != 0 || !choice.finish.empty()) return;
  try {
    if (update.error_status != 0) return TakeFailure(choice, update);
    if (!choice.begun) Begin(index, update);
    if (!request_.stream) {
      TakeMeasured(index, std::move(update), when);
      if (unfinished_ == 0) SendWhole();
      return;
    }
    for (JobUpdate& token : ByToken(std::move(update))) {
      if (choice.finish.empty()) Queue(index, TakeMeasured(index, std::move(token), when));
    }
    // The echo does not count: no client can have read it before it is sent.
    if (lag_bytes_ > static_cast<int64_t>(connection_->max_backlog())) return connection_->Cut();
    if (!waiting_) SendEvents();
  } catch (const std::bad_alloc&) {
    OutOfMemory();
  }
}

// As Take.
int64_t CompletionExchange::TakeMeasured(size_t index, JobUpdate update, std::chrono::steady_clock::time_point when) {
  Choice& choice = choices_[index];
  const std::string text = TakeText(choice, update);
  Measure(choice, update, when);
  if (!update.ids.empty()) choice.last_token = when;
  return Take(index, std::move(update), text);
}

// A stream says it after what came before it.
void CompletionExchange::TakeFailure(Choice& choice, const JobUpdate& update) {
  choice.finish = "error";
  CountFinished(choice.finish);
  if (to_send_.empty()) return FailWith(update.error_status, update.error);
  failure_ = {update.error_status, update.error};
  CancelJobs();
}

void CompletionExchange::Measure(const Choice& choice, const JobUpdate& update,
                                 std::chrono::steady_clock::time_point when) {
  const auto seconds = [&](std::chrono::steady_clock::time_point since) {
    return std::chrono::duration<double>(when - since).count();
  };
  if (!update.ids.empty()) {
    metrics_.AddGeneratedTokens(static_cast<int64_t>(update.ids.size()));
    metrics_.AddDrafts(update.drafted, update.drafts_accepted);
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
  if (request_.reasoning != ReasoningStart::kNone) choice.splitter.emplace(request_.reasoning);
  if (request_.tools != ToolForm::kNone) choice.tools.emplace(request_.tools);
  if (live_) {
    metrics_.ObserveQueueTime(update.queue_seconds);
    metrics_.AddPromptTokens(static_cast<int64_t>(prompt.ids.size()));
    metrics_.AddReusedTokens(update.reused_tokens);
  }
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
    if (!update.last() && choice.job != 0) runner_.Cancel(choice.job);
    update.finish = FinishReason::kStop;
    return text;
  }
  if (update.last()) text += choice.stream->Finish();
  return text;
}

// Returns: about how many bytes of JSON it will be.
int64_t CompletionExchange::Take(size_t index, JobUpdate update, const std::string& text) {
  constexpr int64_t kValueBytes = 32;  // of JSON, about
  Choice& choice = choices_[index];
  const auto alternatives = std::max<int64_t>(0, request_.generate.top_logprobs);
  choice.generated += static_cast<int64_t>(update.ids.size());
  AddText(text, update.last(), &choice);
  auto bytes = static_cast<int64_t>(text.size());
  for (size_t i = 0; request_.wants_logprobs() && i < update.ids.size(); ++i) {
    choice.tokens.Add(update.ids[i], &update.logprobs[i]);
    bytes += kValueBytes * (1 + alternatives);
  }
  if (!update.last()) return bytes;
  choice.finish = FinishReasonName(update.finish);
  const bool called = choice.tools && choice.tools->calls() > 0;
  if (called && !request_.names_tool && update.finish == FinishReason::kStop) choice.finish = "tool_calls";
  choice.logits_sha256 = update.logits_sha256;
  choice.stream.reset();
  CountFinished(choice.finish);
  --unfinished_;
  return bytes;
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
  if (failure_.status == 0) CancelJobs();
  const bool may_go_on = kept_.number != 0 && status == kUnavailable;
  if (may_go_on) {
    answers_->Leave(kept_);
  } else if (kept_.number != 0) {
    answers_->End(kept_);
  }
  const std::string body = ErrorText(status, message, "");
  if (!head_sent_) {
    connection_->Send({status, "application/json", body, {{"X-Request-Id", request_id_}}});
  } else if (request_.stream) {
    SendEvent(body, may_go_on);
    SendEvent("[DONE]", may_go_on);
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
      choice.reasoning = {};
      choice.calls = {};
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
         {"answer", frame_.id.substr(0, frame_.id.find('-') + 1 + kShownDigits)},
         {"status", std::to_string(status)},
         {"choices", std::to_string(choices_.size())},
         {"stream", request_.stream ? "1" : "0"},
         {"prompt_tokens", std::to_string(usage.prompt_tokens)},
         {"completion_tokens", std::to_string(usage.completion_tokens)},
         {"ms", std::to_string(static_cast<int64_t>(elapsed.count()))},
         {"finish", finish}}});
}

}  // namespace stoch::serve
