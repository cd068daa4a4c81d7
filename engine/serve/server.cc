// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/server.h"

#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "engine/serve/http/server.h"
#include "engine/serve/metrics.h"

namespace stoch::serve {
namespace {

constexpr std::chrono::milliseconds kPoll{10};
constexpr std::chrono::milliseconds kAnswers{3000};
constexpr std::chrono::milliseconds kFarewell{1000};  // for errors to reach clients after the timeout

}  // namespace

struct Server::State {
  State(ServerOptions server_options, LogSink sink)
      : options(std::move(server_options)), log(std::move(sink)), api(options.api, metrics, identity, log) {}

  std::unique_ptr<HttpServer> Listen(const HttpOptions& http_options, Api::Door door);
  // Logs what may happen many times a second no more than once a minute.
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
  std::unique_ptr<HttpServer> admin;  // null: none
  bool aborted = false;               // by Drain
  std::unique_ptr<JobRunner> runner;  // goes before http: its last updates go to connections
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

std::unique_ptr<HttpServer> Server::State::Listen(const HttpOptions& http_options, Api::Door door) {
  HttpHooks hooks;
  hooks.always = Api::AnswersAtOnce;
  hooks.refuse_unread = [this, door](const HttpRequest& request) { return api.RefuseUnread(request, door); };
  hooks.on_response = [this](int status) { metrics.CountResponse(status); };
  hooks.on_refused = [this](const std::string& why) {
    metrics.CountRefusedConnection();
    LogNowAndThen("connections_refused", why);
  };
  hooks.on_crowded = [this](const std::string& why) { LogNowAndThen("connections_full", why); };
  hooks.on_error = [this](const std::string& what) { LogNowAndThen("connection_error", what); };
  const auto handler = [this, door](HttpRequest request, const std::shared_ptr<Connection>& connection) {
    return api.Handle(std::move(request), connection, door);
  };
  return std::make_unique<HttpServer>(http_options, handler, std::move(hooks));
}

Server::Server(ServerOptions options, LogSink log)
    : state_(std::make_unique<State>(std::move(options), std::move(log))) {
  State& state = *state_;
  state.metrics.SetBuild(state.options.api.version, state.options.api.commit);
  if (state.options.admin) state.admin = state.Listen(*state.options.admin, Api::Door::kAdmin);
  state.http = state.Listen(state.options.http, Api::Door::kMain);
}

Server::~Server() {
  // What waits for its prompt holds connections.
  state_->api.StopTasks();
  // First: no request may reach a runner that is gone.
  state_->http->Stop();
  if (state_->admin != nullptr) state_->admin->Stop();
}

void Server::Attach(const ServedModel& model, const Language& language, std::unique_ptr<JobRunner> runner,
                    IdentityParts identity) {
  State& state = *state_;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  ModelFacts& facts = state.model;
  facts.id = state.options.model_id.empty() ? model.name : state.options.model_id;
  state.metrics.SetModel(facts.id);
  facts.vocab_size = model.vocab_size;
  facts.context = model.context;
  facts.max_choices = state.options.max_choices;
  facts.max_answer_values = state.options.api.max_answer_values;
  facts.default_seed = state.options.api.default_seed;
  facts.reasoning = state.options.api.reasoning;
  facts.chat = language.chat;
  if (!language.chat_refusal.empty()) facts.chat_refusal = language.chat_refusal;
  SetTokenizer(language.tokenizer, &facts);
  facts.check_grammar = language.check_grammar;
  if (!language.grammar_refusal.empty()) facts.grammar_refusal = language.grammar_refusal;
  facts.tools = state.options.api.tools.value_or(language.chat == nullptr ? ToolForm::kNone
                                                                          : ToolFormOf(language.chat->source()));
  facts.precision = model.precision;
  facts.sc = model.sc;
  facts.device = model.device;
  facts.created = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  identity.version = state.options.api.version + " " + state.options.api.commit;
  identity.precision = facts.precision;
  identity.sc = facts.sc;
  if (language.chat != nullptr) identity.chat_template = language.chat->sha256();
  state.identity.SetParts(std::move(identity));
  state.runner = std::move(runner);
  state.api.Attach(facts, *state.runner);
}

void Server::SetWeightsDigest(std::string digest) { state_->identity.SetWeights(std::move(digest)); }

uint16_t Server::port() const { return state_->http->port(); }
std::string Server::address() const { return state_->http->address(); }
std::string Server::admin_address() const { return state_->admin == nullptr ? "" : state_->admin->address(); }

bool Server::answers() {
  HttpServer* const admin = state_->admin.get();
  return state_->http->Answers(kAnswers) && (admin == nullptr || admin->Answers(kAnswers));
}

JobRunner::Health Server::health() const {
  return state_->runner == nullptr ? JobRunner::Health::kOk : state_->runner->health();
}

std::exception_ptr Server::failure() const { return state_->runner == nullptr ? nullptr : state_->runner->failure(); }

bool Server::Drain(std::chrono::milliseconds timeout) {
  State& state = *state_;
  const auto wait = [&state](std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    const auto done = [&state] {
      return state.http->exchanges() == 0 && (state.runner == nullptr || state.runner->Idle());
    };
    while (!done() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(kPoll);
    return done();
  };
  state.api.StartDraining();
  if (state.runner != nullptr) state.runner->Close();
  state.http->StopAccepting();
  const bool answered = wait(timeout);
  if (!answered) {
    if (state.runner != nullptr) state.runner->Abort();
    wait(kFarewell);
    state.aborted = true;
  }
  return answered;
}

bool Server::stuck() const {
  const State& state = *state_;
  return state.aborted && state.runner != nullptr && !state.runner->Idle();
}

}  // namespace stoch::serve
