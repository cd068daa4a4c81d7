// SPDX-License-Identifier: Apache-2.0
// The endpoints: from an HTTP request to a JSON answer or a stream. Knows nothing of sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request/job_runner.h"
#include "engine/serve/api_keys.h"
#include "engine/serve/format/completion_request.h"
#include "engine/serve/http/connection.h"
#include "engine/serve/identity.h"
#include "engine/serve/log.h"
#include "engine/serve/metrics.h"
#include "engine/serve/stream_registry.h"
#include "engine/serve/task_queue.h"

namespace stoch::serve {

struct ApiOptions {
  std::vector<std::string> api_keys;  // none: everybody is served
  std::string version, commit;        // of /version
  // Of ModelFacts.
  int64_t max_answer_values = 1'000'000;
  std::optional<uint64_t> default_seed;
  ReasoningFormat reasoning = ReasoningFormat::kNone;
  std::optional<ToolForm> tools;  // none: as the chat template has it
  // Lines that the log could not take so far; empty: it takes every one.
  std::function<uint64_t()> dropped_log_lines;
  AnswerLog* answers = nullptr;  // of streams, which can then be taken up again; outlives the API
};

// Threads: Handle on any, several at once.
class Api {
 public:
  Api(ApiOptions options, Metrics& metrics, const Identity& identity, LogSink log);

  // Requests that are answered at once, whatever the others wait for.
  static bool AnswersAtOnce(const HttpRequest& request);

  // kAdmin: /health and /metrics alone, and no key asked for.
  enum class Door { kMain, kAdmin };

  // The answer to a request whose body is not to be read: 401 without a key of this server, 404, 405. Its header is
  // there, its body is not. Handle says the same of a request without a body.
  std::optional<HttpResponse> RefuseUnread(const HttpRequest& request, Door door);

  // From now on completions are answered; before, they are 503. Streams that a process before this one had not finished
  // go on, but for those of which what is kept makes no sense. Both outlive this. Called once.
  void Attach(const ModelFacts& model, JobRunner& runner);
  // Drops the chats that wait for their prompts, and refuses further ones. Before their connections go.
  void StopTasks() {
    renders_.Stop();
    compiles_.Stop();
  }
  // /health says 503 and new completions are refused.
  void StartDraining() { draining_ = true; }

  // HttpHandler. Never throws: what goes wrong is an answer.
  std::shared_ptr<Exchange> Handle(HttpRequest request, const std::shared_ptr<Connection>& connection, Door door);

 private:
  struct Call;   // one request and where its answer goes
  struct Route;  // method, path, who answers
  struct Serving {
    const ModelFacts* model;
    JobRunner* runner;
  };

  static std::span<const Route> Routes();  // but those of one model and one stream
  static const Route* FindRoute(const HttpRequest& request);
  const Route& CheckedRoute(const HttpRequest& request, Door door) const;
  // The answer for the exception being handled.
  HttpResponse ErrorAnswer(const HttpRequest& request, const std::string& id) const;
  const Serving& Ready() const;

  std::shared_ptr<Exchange> Completions(Call& call);
  std::shared_ptr<Exchange> ChatCompletions(Call& call);
  std::shared_ptr<Exchange> StartCompletion(Call& call, CompletionRequest request);
  std::shared_ptr<Exchange> Begin(Call& call, CompletionRequest request);
  std::shared_ptr<Exchange> Stream(Call& call);
  void CheckSeen(const AnswerLog::Name& name, int64_t seen) const;
  std::shared_ptr<CompletionExchange> Continue(const AnswerLog::Kept& kept, Client client);
  void ContinueStreams();
  std::shared_ptr<Exchange> Models(Call& call);
  std::shared_ptr<Exchange> OneModel(Call& call);
  std::shared_ptr<Exchange> Tokenize(Call& call);
  std::shared_ptr<Exchange> Detokenize(Call& call);
  std::shared_ptr<Exchange> ApplyTemplate(Call& call);
  std::shared_ptr<Exchange> TokenizerInfo(Call& call);
  std::shared_ptr<Exchange> Health(Call& call);
  std::shared_ptr<Exchange> MetricsText(Call& call);
  std::shared_ptr<Exchange> Version(Call& call);
  std::shared_ptr<Exchange> ChatPage(Call& call);

  // Runs `work` on the thread of a queue, and then `then` on that of the connection: no other request waits meanwhile.
  // full: what is said where the queue is.
  using Answer = std::function<std::shared_ptr<Exchange>(Call& call)>;
  std::shared_ptr<Exchange> Await(TaskQueue& queue, const char* full, Call& call, std::function<void()> work,
                                  Answer then);
  // Renders the conversation while nothing else waits for it, and then answers as `then` does.
  using Then = std::function<std::shared_ptr<Exchange>(Call& call, const RenderedChat& rendered)>;
  std::shared_ptr<Exchange> Render(Call& call, ChatRequest conversation, Then then);

  Answering Serve() const;
  std::string State() const;  // of /health
  void LogIgnored(const Call& call, const IgnoredFields& fields) const;

  const ApiOptions options_;
  const ApiKeys keys_;
  Metrics& metrics_;
  const Identity& identity_;
  const LogSink log_;
  Serving serving_{};
  StreamRegistry streams_;
  std::atomic<bool> ready_{false};
  std::atomic<bool> draining_{false};
  TaskQueue renders_{"render"};
  TaskQueue compiles_{"grammars"};
};

}  // namespace stoch::serve
