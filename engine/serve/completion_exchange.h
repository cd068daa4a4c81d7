// One /v1/completions or /v1/chat/completions request on its way: jobs in the scheduler, JSON to the client.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/serve/completion_request.h"
#include "engine/serve/completion_response.h"
#include "engine/serve/connection.h"
#include "engine/serve/log.h"
#include "engine/serve/scheduler.h"

namespace stoch::serve {

class CompletionExchange : public Exchange, public std::enable_shared_from_this<CompletionExchange> {
 public:
  CompletionExchange(CompletionRequest request, const ModelFacts& model, Scheduler& scheduler,
                     std::shared_ptr<Connection> connection, std::string request_id, const LogSink& log);

  // What:   queues the jobs.
  // Errors: RequestError: 429 where the queue is full, 503 where the server drains or its engine failed.
  void Start();
  void OnDisconnect() override;

 private:
  struct Choice {
    explicit Choice(LogprobWriter logprob_writer) : writer(logprob_writer) {}
    LogprobWriter writer;
    std::string text;
    std::vector<int32_t> ids;                           // that logprobs belong to, echoed ones included
    std::vector<std::optional<TokenLogprob>> logprobs;  // where asked for
    std::string finish;
    int64_t generated = 0;
    bool echoed = false;   // the prompt is taken, where asked for
    bool started = false;  // a chunk was sent
  };

  void OnUpdate(size_t index, JobUpdate update);
  void Take(size_t index, JobUpdate update);
  void SendChunk(size_t index);
  void SendWhole();
  void Finish();
  void FailWith(int status, const std::string& message);
  void CancelJobs();
  void Log(int status, const std::string& finish);
  Usage TotalUsage() const;

  const CompletionRequest request_;
  Scheduler& scheduler_;
  const std::shared_ptr<Connection> connection_;
  const std::string request_id_;
  const LogSink& log_;
  const std::chrono::steady_clock::time_point start_;
  ResponseFrame frame_;
  std::vector<Choice> choices_;
  uint64_t first_job_ = 0;
  size_t unfinished_ = 0;
  bool events_started_ = false;
  bool ended_ = false;
};

}  // namespace stoch::serve
