// SPDX-License-Identifier: Apache-2.0
// One /v1/completions or /v1/chat/completions request on its way: jobs in the runner, text and JSON to the client.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request/answer_log.h"
#include "engine/request/job_runner.h"
#include "engine/request/text_stream.h"
#include "engine/serve/format/completion_request.h"
#include "engine/serve/format/completion_response.h"
#include "engine/serve/format/stored_request.h"
#include "engine/serve/http/connection.h"
#include "engine/serve/log.h"
#include "engine/serve/metrics.h"
#include "engine/serve/whole_answer.h"

namespace stoch::serve {

// What all exchanges of a server have to do with; it outlives them.
struct Answering {
  const ModelFacts& model;
  JobRunner& runner;
  Metrics& metrics;
  const LogSink& log;
  AnswerLog* answers = nullptr;  // of streams; null: they are not kept
};

// Who asks.
struct Client {
  std::shared_ptr<Connection> connection;
  std::string request_id;  // for logs, and its own: no two need differ
  std::string owner;       // digest of its key, "" where none is asked for
  std::string address;     // where it is, "" where that is not known; takes turns in the place of a key
};

// Sent and not taken by the system yet: no more JSON is made before some of it has left.
inline constexpr size_t kMuchBytes = 256 << 10;

// What waits for a slow client waits as TokenColumns; JSON is made piece by piece, as the client takes it.
//
// Event n of a stream depends on nothing but the updates so far, one after another: not on when they came, nor on how
// fast the client reads. So a stream whose updates are kept can be taken up at any event, in another process too.
class CompletionExchange : public Exchange, public std::enable_shared_from_this<CompletionExchange> {
 public:
  // fingerprint: of the answer, "" while it is not known.
  CompletionExchange(const Answering& server, CompletionRequest request, std::string fingerprint, Client client);
  // Of an answer that an earlier exchange began.
  CompletionExchange(const Answering& server, StoredRequest stored, Client client);

  // Queues the jobs; a stream begins at once.
  // Errors: RequestError: 429 where the queue is full, 503 where the server drains or its engine failed.
  void Start();
  // Sends the events of the stream after number `seen` (-1: all of them), and goes on with it. What goes wrong is an
  // event. Requires: CheckKept of what is kept.
  void Resume(AnswerLog::Kept kept, int64_t seen);
  // Ends it, soon: another one goes on with its answer. Any thread.
  void AskToGiveWay();
  void OnDisconnect() override;

  const std::string& answer_id() const { return frame_.id; }

 private:
  struct Choice : AnswerChoice {
    using AnswerChoice::AnswerChoice;
    std::optional<TextStream> stream;
    std::optional<ReasoningSplitter> splitter;  // where reasoning is taken apart
    std::optional<ToolCallSplitter> tools;      // where calls are
    std::chrono::steady_clock::time_point last_token;
    uint64_t job = 0;  // 0: none
    int64_t generated = 0;
    size_t sent = 0;       // tokens of a stream
    size_t waiting = 0;    // tokens of it in to_send_
    bool begun = false;    // an update has come: the prompt is taken, where asked for
    bool queued = false;   // a piece has been in to_send_
    bool started = false;  // a chunk was sent
  };
  // What one update brought for a stream.
  struct Piece {
    size_t choice = 0;
    std::string text, reasoning;
    std::vector<ToolCall> calls;
    size_t tokens = 0;
    bool last = false;
    int64_t lag_bytes = 0;  // about what it will take
  };

  // Why it cannot go on.
  struct Failure {
    int status = 0;  // 0: it can
    std::string message;
  };
  HttpHeaders StreamHeaders() const;
  Failure Submit(const std::vector<std::vector<int32_t>>& emitted);
  void GiveWay();
  void OnUpdate(size_t index, JobUpdate update, std::chrono::steady_clock::time_point when);
  static std::vector<JobUpdate> ByToken(JobUpdate update);
  int64_t TakeMeasured(size_t index, JobUpdate update, std::chrono::steady_clock::time_point when);
  void TakeFailure(Choice& choice, const JobUpdate& update);
  void OnKeptUpdate(size_t index, JobUpdate update);
  void Queue(size_t index, int64_t lag_bytes);
  void Measure(const Choice& choice, const JobUpdate& update, std::chrono::steady_clock::time_point when);
  void Begin(size_t index, const JobUpdate& update);
  int64_t Take(size_t index, JobUpdate update, const std::string& text);
  static void AddText(const std::string& text, bool last, Choice* choice);
  std::string TakeText(Choice& choice, JobUpdate& update);
  void SendEvents();
  bool SendChunk(Piece& piece);
  void SendWhole();
  void SendPieces();
  void EndStream();
  void WaitForRoom(void (CompletionExchange::*then)());
  void SendEvent(const std::string& data, bool is_last_again = false);
  void FailWith(int status, const std::string& message);
  void OutOfMemory() noexcept;
  void CancelJobs();
  void CountFinished(const std::string& reason);
  void LogEnd();
  void Log(int status, const std::string& finish);
  Usage TotalUsage() const;

  const CompletionRequest request_;
  const ModelFacts& model_;
  JobRunner& runner_;
  Metrics& metrics_;
  const LogSink& log_;
  AnswerLog* const answers_;
  const std::shared_ptr<Connection> connection_;
  const std::string request_id_, owner_, address_;
  const std::chrono::steady_clock::time_point start_;
  ResponseFrame frame_;
  std::vector<Choice> choices_;
  std::deque<Piece> to_send_;  // of a stream
  Failure failure_;            // to be told after them
  int64_t lag_bytes_ = 0;      // of those of running jobs
  int64_t events_ = 0;
  int64_t seen_ = -1;  // the last event that the client has from an earlier connection
  std::optional<WholeAnswer> whole_;
  AnswerKey kept_;
  bool live_ = true;  // updates are new ones, not those that were kept
  size_t unfinished_ = 0;
  bool waiting_ = false;  // for the client to take what it has
  bool head_sent_ = false;
  bool ended_ = false;
};

}  // namespace stoch::serve
