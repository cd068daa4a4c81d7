// SPDX-License-Identifier: Apache-2.0
// The whole server: HTTP in front, and whoever runs the requests behind.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/request/job_runner.h"
#include "engine/serve/api.h"
#include "engine/serve/http/options.h"
#include "engine/serve/http/server.h"
#include "engine/serve/identity.h"
#include "engine/serve/log.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch::serve {

struct ServerOptions {
  HttpOptions http;
  std::optional<HttpOptions> admin;  // where /health and /metrics are asked for besides, by connections of its own
  ApiOptions api;
  int64_t max_choices = 1024;  // sequences one request may ask for
  std::string model_id;        // what clients call the model; "" = the model's own name
};

class Server {
 public:
  // Listens at once. Until Attach, /health and completions say 503.
  // Errors: as HttpServer.
  Server(ServerOptions options, LogSink log);
  // Drops every request.
  ~Server();

  // Tokenizer and chat of the model; both outlive this, null: there is none.
  struct Language {
    const Tokenizer* tokenizer = nullptr;
    const Chat* chat = nullptr;
    std::string chat_refusal;                                    // where there is none: why
    std::function<void(const GrammarSpec&)> check_grammar = {};  // ModelFacts; empty: there are no grammars
    std::string grammar_refusal = {};                            // where there are none: why
  };
  // Answers with what `runner` generates from now on. identity: its config and tokenizer; the rest is filled in.
  void Attach(const ServedModel& model, const Language& language, std::unique_ptr<JobRunner> runner,
              IdentityParts identity = {});
  // From now on answers have a system_fingerprint. Any thread, after Attach.
  void SetWeightsDigest(std::string digest);

  uint16_t port() const;
  std::string address() const;
  std::string admin_address() const;  // "" for none
  // Whether the threads of the sockets have answered within the last few seconds. To be called several times a second.
  bool answers();
  JobRunner::Health health() const;
  std::exception_ptr failure() const;  // of the runner, null while it is well

  // No new connections or requests; waits until those there are done, at most `timeout`, then fails the rest with 503
  // and waits a moment for the answers to leave.
  // Returns: true if everything was answered.
  bool Drain(std::chrono::milliseconds timeout);
  // The runner has not come back from a pass though Drain failed its requests. Destroying the server would wait for
  // it.
  bool stuck() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stoch::serve
