#include "engine/serve/server.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "engine/serve/http/server.h"
#include "engine/serve/metrics.h"
#include "engine/sha256.h"

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
      : options(std::move(server_options)), log(std::move(sink)), api(options.api, metrics, identity, log) {}

  HttpHooks Hooks();
  // What: logs what may happen many times a second no more than once a minute.
  void LogNowAndThen(const char* event, const std::string& why);

  const ServerOptions options;
  const LogSink log;
  std::mutex mutex;  // of what follows
  std::map<std::string, std::chrono::steady_clock::time_point> logged;
  Metrics metrics;
  Identity identity;
  Api api;
  ModelFacts model;
  std::unique_ptr<HttpServer> http;
  bool aborted = false;                  // by Drain
  std::unique_ptr<Scheduler> scheduler;  // goes before http: its last updates go to connections
};

void Server::State::LogNowAndThen(const char* event, const std::string& why) {
  constexpr std::chrono::seconds kPause{60};
  const auto now = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex);
    const auto [last, first] = logged.emplace(event, now);
    if (!first && now - last->second < kPause) return;
    last->second = now;
  }
  log({LogLevel::kWarning, event, {{"why", why}}});
}

HttpHooks Server::State::Hooks() {
  HttpHooks hooks;
  hooks.always = Api::AnswersAtOnce;
  hooks.on_response = [this](int status) { metrics.CountResponse(status); };
  hooks.on_refused = [this](const std::string& why) {
    metrics.CountRefusedConnection();
    LogNowAndThen("connections_refused", why);
  };
  hooks.on_error = [this](const std::string& what) { LogNowAndThen("connection_error", what); };
  return hooks;
}

Server::Server(ServerOptions options, LogSink log)
    : state_(std::make_unique<State>(std::move(options), std::move(log))) {
  State& state = *state_;
  state.metrics.SetBuild(state.options.api.version, state.options.api.commit);
  state.http = std::make_unique<HttpServer>(
      state.options.http,
      [&state](HttpRequest request, const std::shared_ptr<Connection>& connection) {
        return state.api.Handle(std::move(request), connection);
      },
      state.Hooks());
}

Server::~Server() {
  state_->http->Stop();  // first: no request may reach a scheduler that is gone
}

void Server::Attach(Engine& engine, const Tokenizer* tokenizer, IdentityParts identity) {
  State& state = *state_;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  state.model.id = state.options.model_id.empty() ? engine.model_name() : state.options.model_id;
  state.model.vocab_size = engine.config().vocab_size;
  state.model.context = LongestSequence(engine);
  state.model.max_choices = state.options.scheduler.max_queue;
  state.model.max_answer_values = state.options.api.max_answer_values;
  state.model.default_seed = state.options.api.default_seed;
  state.model.chat_date = state.options.api.chat_date;
  SetTokenizer(tokenizer, &state.model);
  state.model.precision = PrecisionName(engine.options().precision);
  state.model.sc = engine.sc_description();
  state.model.device = DeviceNames(engine);
  state.model.created = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  identity.version = state.options.api.version;
  identity.precision = state.model.precision;
  identity.sc = state.model.sc;
  if (tokenizer != nullptr && !tokenizer->chat_template().empty()) {
    identity.chat_template = Sha256Hex(tokenizer->chat_template());
  }
  state.identity.SetParts(std::move(identity));
  state.scheduler = std::make_unique<Scheduler>(engine, tokenizer, state.options.scheduler, state.metrics);
  state.api.Attach(state.model, *state.scheduler);
}

void Server::SetWeightsDigest(std::string digest) { state_->identity.SetWeights(std::move(digest)); }

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
