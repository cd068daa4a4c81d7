#include "engine/serve/server.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "engine/serve/http_server.h"
#include "engine/serve/metrics.h"

namespace stoch::serve {
namespace {

constexpr std::chrono::milliseconds kPoll{10};
constexpr std::chrono::milliseconds kFarewell{1000};  // for errors to reach clients after the timeout

std::string DeviceNames(Engine& engine) {
  std::string names;
  for (const Device& device : engine.backend().devices()) names += (names.empty() ? "" : ",") + DeviceName(device);
  return names;
}

// The longest sequence that both the context and the whole KV cache have room for.
int64_t LongestSequence(const Engine& engine) {
  return std::min(engine.shape().context, NumPages(engine.shape()) * kKvPageTokens);
}

}  // namespace

struct Server::State {
  State(ServerOptions server_options, LogSink sink)
      : options(std::move(server_options)), log(std::move(sink)), api(options.api, metrics, log) {}

  const ServerOptions options;
  const LogSink log;
  Metrics metrics;
  Api api;
  ModelFacts model;
  std::unique_ptr<HttpServer> http;
  bool aborted = false;                  // by Drain
  std::unique_ptr<Scheduler> scheduler;  // goes before http: its last updates go to connections
};

Server::Server(ServerOptions options, LogSink log)
    : state_(std::make_unique<State>(std::move(options), std::move(log))) {
  State& state = *state_;
  state.http = std::make_unique<HttpServer>(
      state.options.http,
      [&state](HttpRequest request, const std::shared_ptr<Connection>& connection) {
        return state.api.Handle(std::move(request), connection);
      },
      [&state](int status) { state.metrics.CountResponse(status); });
}

Server::~Server() {
  state_->http->Stop();  // first: no request may reach a scheduler that is gone
}

void Server::Attach(Engine& engine, const Tokenizer* tokenizer) {
  State& state = *state_;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  state.model.id = state.options.model_id.empty() ? engine.model_name() : state.options.model_id;
  state.model.vocab_size = engine.config().vocab_size;
  state.model.context = LongestSequence(engine);
  state.model.max_choices = state.options.scheduler.max_queue;
  state.model.tokenizer = tokenizer;
  state.model.precision = PrecisionName(engine.options().precision);
  state.model.sc = engine.sc_description();
  state.model.device = DeviceNames(engine);
  state.model.created = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  state.scheduler = std::make_unique<Scheduler>(engine, tokenizer, state.options.scheduler, state.metrics);
  state.api.Attach(state.model, *state.scheduler);
}

uint16_t Server::port() const { return state_->http->port(); }
std::string Server::address() const { return state_->http->address(); }

Scheduler::Health Server::health() const {
  return state_->scheduler == nullptr ? Scheduler::Health::kOk : state_->scheduler->health();
}

std::exception_ptr Server::failure() const {
  return state_->scheduler == nullptr ? nullptr : state_->scheduler->failure();
}

bool Server::Drain(std::chrono::milliseconds timeout) {
  State& state = *state_;
  const auto wait = [&state](std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    const auto done = [&state] {
      return state.http->exchanges() == 0 && (state.scheduler == nullptr || state.scheduler->Idle());
    };
    while (!done() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(kPoll);
    return done();
  };
  state.api.StartDraining();
  if (state.scheduler != nullptr) state.scheduler->Close();
  state.http->StopAccepting();
  const bool answered = wait(timeout);
  if (!answered) {
    if (state.scheduler != nullptr) state.scheduler->Abort();
    wait(kFarewell);
    state.aborted = true;
  }
  return answered;
}

bool Server::stuck() const {
  const State& state = *state_;
  return state.aborted && state.scheduler != nullptr && !state.scheduler->Idle();
}

}  // namespace stoch::serve
