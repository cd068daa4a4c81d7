// The whole server: HTTP in front, the scheduler and its engine behind.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "engine/serve/api.h"
#include "engine/serve/http/options.h"
#include "engine/serve/http/server.h"
#include "engine/serve/identity.h"
#include "engine/serve/log.h"
#include "engine/serve/scheduler.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch::serve {

struct ServerOptions {
  HttpOptions http;
  ApiOptions api;
  Scheduler::Options scheduler;
  std::string model_id;  // what clients call the model; "" = the engine's name for it
};

class Server {
 public:
  // What:   listens at once. Until Attach, /health and completions say 503.
  // Errors: InvalidInput where it cannot listen.
  Server(ServerOptions options, LogSink log);
  // Drops every request.
  ~Server();

  // What: serves the engine, from a thread of its own: nobody else may use it from now on. tokenizer may be null.
  //       Both outlive this. identity: its config and tokenizer; the rest is filled in.
  void Attach(Engine& engine, const Tokenizer* tokenizer, IdentityParts identity = {});
  // What: from now on answers have a system_fingerprint. Any thread, after Attach.
  void SetWeightsDigest(std::string digest);

  uint16_t port() const;
  std::string address() const;
  Scheduler::Health health() const;
  std::exception_ptr failure() const;  // what ended the engine's thread, null while it is well

  // What:    no new connections or requests; waits until those there are done, at most `timeout`, then fails the rest
  //          with 503 and waits a moment for the answers to leave.
  // Returns: true if everything was answered.
  bool Drain(std::chrono::milliseconds timeout);
  // What: the engine's thread has not come back from a pass though Drain failed its requests. Destroying the server
  //       would wait for it.
  bool stuck() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stoch::serve
