// SPDX-License-Identifier: Apache-2.0
// One /v1/completions or /v1/chat/completions request on its way: jobs in the runner, text and JSON to the client.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request/job_runner.h"
#include "engine/request/text_stream.h"
#include "engine/serve/completion_request.h"
#include "engine/serve/completion_response.h"
#include "engine/serve/http/connection.h"
#include "engine/serve/log.h"
#include "engine/serve/metrics.h"
#include "engine/serve/whole_answer.h"

namespace stoch::serve {

// What waits for a slow client waits as TokenColumns; JSON is made piece by piece, as the client takes it.
class CompletionExchange : public Exchange, public std::enable_shared_from_this<CompletionExchange> {
 public:
  // fingerprint: of the answer, "" while it is not known.
  CompletionExchange(CompletionRequest request, const ModelFacts& model, std::string fingerprint, JobRunner& runner,
                     std::shared_ptr<Connection> connection, std::string request_id, Metrics& metrics,
                     const LogSink& log);

  // Queues the jobs; a stream begins at once.
  // Errors: RequestError: 429 where the queue is full, 503 where the server drains or its engine failed.
  void Start();
  void OnDisconnect() override;

 private:
  struct Choice : AnswerChoice {
    using AnswerChoice::AnswerChoice;
    std::optional<TextStream> stream;
    std::chrono::steady_clock::time_point last_token;
    int64_t generated = 0;
    int64_t lag_bytes = 0;  // of a stream: about what generated tokens that are not sent will take
    size_t sent = 0;        // tokens of a stream
    bool begun = false;     // an update has come: the prompt is taken, where asked for
    bool started = false;   // a chunk was sent
    bool queued = false;    // in to_send_
  };

  void OnUpdate(size_t index, JobUpdate update, std::chrono::steady_clock::time_point when);
  void Measure(const Choice& choice, const JobUpdate& update, std::chrono::steady_clock::time_point when);
  void Begin(size_t index, const JobUpdate& update);
  void Take(size_t index, JobUpdate update, const std::string& text);
  std::string TakeText(Choice& choice, JobUpdate& update);
  bool HasMore(const Choice& choice) const;
  void SendEvents();
  void SendChunk(size_t index);
  void SendWhole();
  void SendPieces();
  void EndStream();
  void WaitForRoom(void (CompletionExchange::*then)());
  void SendEvent(const std::string& data);
  void FailWith(int status, const std::string& message);
  void OutOfMemory() noexcept;
  void CancelJobs();
  void LogEnd();
  void Log(int status, const std::string& finish);
  Usage TotalUsage() const;

  const CompletionRequest request_;
  const ModelFacts& model_;
  JobRunner& runner_;
  const std::shared_ptr<Connection> connection_;
  const std::string request_id_;
  Metrics& metrics_;
  const LogSink& log_;
  const std::chrono::steady_clock::time_point start_;
  ResponseFrame frame_;
  std::vector<Choice> choices_;
  std::deque<size_t> to_send_;  // choices of a stream with something to say
  int64_t lag_bytes_ = 0;
  int64_t events_ = 0;
  std::optional<WholeAnswer> whole_;
  uint64_t first_job_ = 0;
  size_t unfinished_ = 0;
  bool waiting_ = false;  // for the client to take what it has
  bool head_sent_ = false;
  bool ended_ = false;
};

}  // namespace stoch::serve
