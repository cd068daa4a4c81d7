#include "engine/serve/completion_exchange.h"

#include <utility>

#include "engine/serve/request_error.h"

namespace stoch::serve {
namespace {

constexpr int kOk = 200;
constexpr int kClientClosed = 499;  // nginx's number, in logs only: nobody is there to read it
constexpr int kTooManyRequests = 429;
constexpr int kUnavailable = 503;

}  // namespace

CompletionExchange::CompletionExchange(CompletionRequest request, const ModelFacts& model, Scheduler& scheduler,
                                       std::shared_ptr<Connection> connection, std::string request_id,
                                       const LogSink& log)
    : request_(std::move(request)),
      scheduler_(scheduler),
      connection_(std::move(connection)),
      request_id_(std::move(request_id)),
      log_(log),
      start_(std::chrono::steady_clock::now()) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  frame_.id = (request_.chat ? "chatcmpl-" : "cmpl-") + request_id_;
  frame_.chat = request_.chat;
  frame_.model = model.id;
  frame_.created = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  unfinished_ = request_.num_choices();
  for (size_t i = 0; i < request_.num_choices(); ++i) {
    choices_.emplace_back(LogprobWriter(model.tokenizer, request_.chat));
  }
}

void CompletionExchange::Start() {
  std::vector<Job> jobs;
  for (size_t i = 0; i < choices_.size(); ++i) {
    jobs.push_back({request_.Choice(i), [self = shared_from_this(), i](JobUpdate update) {
                      auto shared = std::make_shared<JobUpdate>(std::move(update));
                      self->connection_->Post([self, i, shared] { self->OnUpdate(i, std::move(*shared)); });
                    }});
  }
  const Scheduler::Submission submission = scheduler_.Submit(std::move(jobs));
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
}

void CompletionExchange::OnDisconnect() {
  if (ended_) return;
  ended_ = true;
  CancelJobs();
  Log(kClientClosed, "disconnected");
}

void CompletionExchange::CancelJobs() {
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i].finish.empty()) scheduler_.Cancel(first_job_ + i);
  }
}

void CompletionExchange::OnUpdate(size_t index, JobUpdate update) {
  if (ended_) return;
  if (update.error_status != 0) {
    choices_[index].finish = "error";
    return FailWith(update.error_status, update.error);
  }
  Take(index, std::move(update));
  if (request_.stream) SendChunk(index);
  if (unfinished_ == 0) Finish();
}

void CompletionExchange::Take(size_t index, JobUpdate update) {
  Choice& choice = choices_[index];
  if (request_.echo && !choice.echoed) {
    choice.echoed = true;
    const Prompt& prompt = request_.prompts[index / static_cast<size_t>(request_.n)];
    choice.text = prompt.text;
    if (request_.wants_logprobs()) {
      choice.ids = prompt.ids;
      choice.logprobs = std::move(update.prompt_logprobs);
    }
  }
  choice.text += update.text;
  choice.generated += static_cast<int64_t>(update.ids.size());
  if (request_.wants_logprobs()) {
    choice.ids.insert(choice.ids.end(), update.ids.begin(), update.ids.end());
    for (TokenLogprob& logprob : update.logprobs) choice.logprobs.emplace_back(std::move(logprob));
  }
  if (update.last()) {
    choice.finish = FinishReasonName(update.finish);
    --unfinished_;
  }
}

void CompletionExchange::SendChunk(size_t index) {
  if (!events_started_) {
    events_started_ = true;
    connection_->StartEvents({{"X-Request-Id", request_id_}});
  }
  Choice& choice = choices_[index];
  // Text may be held back (half a character, a possible stop string): nothing to say until it is certain.
  if (choice.started && choice.text.empty() && choice.ids.empty() && choice.finish.empty()) return;
  OrderedJson logprobs = nullptr;
  if (request_.wants_logprobs()) logprobs = choice.writer.Piece(choice.ids, choice.logprobs);
  OrderedJson body = frame_.Body(true);
  body["choices"] = OrderedJson::array(
      {ChunkChoice(request_.chat, index, choice.text, std::move(logprobs), choice.finish, !choice.started)});
  if (request_.include_usage) body["usage"] = nullptr;
  choice.started = true;
  choice.text.clear();
  choice.ids.clear();
  choice.logprobs.clear();
  connection_->SendEvent(Dump(body));
}

void CompletionExchange::SendWhole() {
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    OrderedJson logprobs = nullptr;
    if (request_.wants_logprobs()) logprobs = choice.writer.Piece(choice.ids, choice.logprobs);
    list.push_back(WholeChoice(request_.chat, i, choice.text, std::move(logprobs), choice.finish));
  }
  OrderedJson body = frame_.Body(false);
  body["choices"] = std::move(list);
  body["usage"] = UsageJson(TotalUsage());
  connection_->Send({kOk, "application/json", Dump(body), {{"X-Request-Id", request_id_}}});
}

void CompletionExchange::Finish() {
  ended_ = true;
  if (request_.stream) {
    if (request_.include_usage) {
      OrderedJson body = frame_.Body(true);
      body["choices"] = OrderedJson::array();
      body["usage"] = UsageJson(TotalUsage());
      connection_->SendEvent(Dump(body));
    }
    connection_->SendEvent("[DONE]");
    connection_->EndEvents();
  } else {
    SendWhole();
  }
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
  if (events_started_) {
    connection_->SendEvent(body);
    connection_->SendEvent("[DONE]");
    connection_->EndEvents();
  } else {
    connection_->Send({status, "application/json", body, {{"X-Request-Id", request_id_}}});
  }
  Log(status, "error: " + message);
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
