// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/api.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/serve/api_call.h"
#include "engine/serve/chat_page.h"
#include "engine/serve/completion_exchange.h"
#include "engine/serve/detached_connection.h"
#include "engine/serve/format/completion_response.h"
#include "engine/serve/format/grammar_fields.h"
#include "engine/serve/format/json_fields.h"
#include "engine/serve/format/list_limits.h"
#include "engine/serve/http/request_error.h"
#include "engine/serve/random_id.h"
#include "loader/bounded_json.h"
#include "loader/near_name.h"

namespace stoch::serve {
namespace {

using Json = SortedJson;

constexpr int kUnauthorized = 401;
constexpr int kNotFound = 404;
constexpr int kMethodNotAllowed = 405;
constexpr int kTooManyRequests = 429;
constexpr int kInternalError = 500;
constexpr int kUnavailable = 503;
constexpr const char* kModelsPath = "/v1/models/";
constexpr const char* kStreamsPath = "/v1/streams/";

// The path with its %XX as the bytes they stand for.
std::string Unescaped(const std::string& path) {
  std::string text;
  for (size_t i = 0; i < path.size(); ++i) {
    int byte = 0;
    const char* digits = path.data() + i + 1;
    if (path[i] == '%' && i + 2 < path.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      text += static_cast<char>(byte);
      i += 2;
    } else {
      text += path[i];
    }
  }
  return text;
}

OrderedJson ModelJson(const ModelFacts& model, const Identity& identity) {
  const std::string fingerprint = identity.Fingerprint();
  return {{"id", model.id},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "stoch"},
          {"max_model_len", model.context},
          {"precision", model.precision},
          {"sc", model.sc},
          {"device", model.device},
          {"system_fingerprint", fingerprint.empty() ? OrderedJson(nullptr) : OrderedJson(fingerprint)},
          {"digests", identity.Describe()}};
}

// A path of somebody else's, for a log or an error: a line is not theirs to fill.
std::string Shown(const std::string& path) {
  constexpr size_t kShown = 128;
  return path.size() <= kShown ? path : path.substr(0, kShown) + "...";
}

// The same for a log. What names a stream there is the key to it where there are no others.
std::string ShownInLog(const std::string& path) {
  constexpr size_t kShown = 17;  // of "cmpl-" and digits
  const size_t known = std::string_view(kStreamsPath).size() + kShown;
  if (!path.starts_with(kStreamsPath) || path.size() <= known) return Shown(path);
  return path.substr(0, known) + "...";
}

// A label of somebody else's that is safe in headers and logs.
bool IsPlainLabel(const std::string& text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  });
}

// What logs call a request: the client's own word for it, where it has one.
std::string RequestId(const std::string& given) {
  if (IsPlainLabel(given)) return given;
  try {
    return RandomId();
  } catch (const std::runtime_error&) {  // whatever needs an id that nobody guesses fails
    return "unnamed";
  }
}

// "bos_token" and "bos_token_id" of ROLE "bos"; null where the tokenizer has none.
void AddToken(const Tokenizer& tokenizer, const std::string& role, std::optional<int32_t> id, OrderedJson* info) {
  (*info)[role + "_token"] = id.has_value() ? OrderedJson(tokenizer.TokenText(*id)) : OrderedJson(nullptr);
  (*info)[role + "_token_id"] = id.has_value() ? OrderedJson(*id) : OrderedJson(nullptr);
}

// The number in "ID:N", -1 for "". Errors: RequestError for an event of something else.
int64_t SeenEvents(const std::string& last_event_id, const std::string& id) {
  if (last_event_id.empty()) return -1;
  int64_t number = -1;
  const char* digits = last_event_id.data() + id.size() + 1;
  const char* end = last_event_id.data() + last_event_id.size();
  const bool is_ours = last_event_id.size() > id.size() + 1 && last_event_id.starts_with(id + ":");
  if (is_ours && std::from_chars(digits, end, number).ptr == end && number >= 0) return number;
  throw RequestError(400, "", "Last-Event-ID: expected " + id + ":N, the id of an event of this stream");
}

}  // namespace

struct Api::Route {
  const char* method;
  const char* path;
  std::shared_ptr<Exchange> (Api::*answer)(Call& call);
};

Api::Api(ApiOptions options, Metrics& metrics, const Identity& identity, LogSink log)
    : options_(std::move(options)),
      keys_(options_.api_keys),
      metrics_(metrics),
      identity_(identity),
      log_(std::move(log)) {}

bool Api::AnswersAtOnce(const HttpRequest& request) { return request.path == "/health" || request.path == "/metrics"; }

void Api::Attach(const ModelFacts& model, JobRunner& runner) {
  serving_ = {&model, &runner};
  ContinueStreams();
  ready_ = true;
}

// ----------------------------------------------------------------------------------------------- the way in -------

std::span<const Api::Route> Api::Routes() {
  static constexpr std::array<Route, 11> kRoutes = {{
      {"POST", "/v1/completions", &Api::Completions},
      {"POST", "/v1/chat/completions", &Api::ChatCompletions},
      {"GET", "/v1/models", &Api::Models},
      {"POST", "/tokenize", &Api::Tokenize},
      {"POST", "/detokenize", &Api::Detokenize},
      {"POST", "/apply-template", &Api::ApplyTemplate},
      {"GET", "/tokenizer_info", &Api::TokenizerInfo},
      {"GET", "/health", &Api::Health},
      {"GET", "/metrics", &Api::MetricsText},
      {"GET", "/version", &Api::Version},
      {"GET", "/", &Api::ChatPage},
  }};
  return kRoutes;
}

const Api::Route* Api::FindRoute(const HttpRequest& request) {
  static constexpr Route kOneModel = {"GET", kModelsPath, &Api::OneModel};
  static constexpr Route kStream = {"GET", kStreamsPath, &Api::Stream};
  if (request.path.starts_with(kModelsPath)) return &kOneModel;
  if (request.path.starts_with(kStreamsPath)) return &kStream;
  const std::span<const Route> routes = Routes();
  const auto found =
      std::find_if(routes.begin(), routes.end(), [&](const Route& route) { return request.path == route.path; });
  return found == routes.end() ? nullptr : &*found;
}

std::shared_ptr<Exchange> Api::Handle(HttpRequest request, const std::shared_ptr<Connection>& connection, Door door) {
  const std::string id = RequestId(request.request_id);
  Call call{std::move(request), connection, id, ""};
  try {
    const Route& route = CheckedRoute(call.request, door);
    call.owner = keys_.Identify(call.request.authorization).value_or("");
    return (this->*route.answer)(call);
  } catch (const std::exception&) {
    connection->Send(ErrorAnswer(call.request, call.id));
  }
  return nullptr;
}

std::optional<HttpResponse> Api::RefuseUnread(const HttpRequest& request, Door door) {
  try {
    CheckedRoute(request, door);
  } catch (const std::exception&) {
    return ErrorAnswer(request, RequestId(request.request_id));
  }
  return std::nullopt;
}

HttpResponse Api::ErrorAnswer(const HttpRequest& request, const std::string& id) const {
  int status = kInternalError;
  std::string message, param;
  HttpHeaders headers = {{"X-Request-Id", id}};
  try {
    throw;
  } catch (const RequestError& error) {
    status = error.status();
    message = error.what();
    param = error.param();
    if (status == kTooManyRequests || status == kUnavailable) headers.emplace_back("Retry-After", "1");
    if (status == kUnauthorized) headers.emplace_back("WWW-Authenticate", "Bearer");
    if (status == kMethodNotAllowed) headers.emplace_back("Allow", FindRoute(request)->method);
  } catch (const InvalidInput& error) {
    status = 400;
    message = error.what();
  } catch (const std::exception& error) {
    message = std::string("internal error: ") + error.what();
  }
  log_({status >= kInternalError ? LogLevel::kError : LogLevel::kInfo,
        "refused",
        {{"id", id}, {"path", ShownInLog(request.path)}, {"status", std::to_string(status)}, {"why", message}}});
  return {status, "application/json", ErrorText(status, message, param), std::move(headers)};
}

const Api::Route& Api::CheckedRoute(const HttpRequest& request, Door door) const {
  const bool is_admin = door == Door::kAdmin;
  const Route* route = !is_admin || AnswersAtOnce(request) ? FindRoute(request) : nullptr;
  // The page holds no secret, and has a field for the key of what it asks for.
  const bool is_open = is_admin || request.path == "/health" || request.path == "/";
  if (!is_open && !keys_.Identify(request.authorization)) {
    throw RequestError(kUnauthorized, "", "expected the header Authorization: Bearer KEY with this server's key");
  }
  if (route == nullptr) {
    std::vector<std::string> paths;
    if (!is_admin) {
      for (const Route& known : Routes()) paths.emplace_back(known.path);
    }
    throw RequestError(kNotFound, "", "there is no " + Shown(request.path) + " here" + DidYouMean(request.path, paths));
  }
  const bool head = request.method == "HEAD" && std::string_view(route->method) == "GET";
  if (!head && request.method != route->method) {
    throw RequestError(kMethodNotAllowed, "", Shown(request.path) + " takes " + route->method + " only");
  }
  return *route;
}

const Api::Serving& Api::Ready() const {
  if (!ready_) throw RequestError(kUnavailable, "", "the model is being loaded");
  return serving_;
}

void Api::LogIgnored(const Call& call, const IgnoredFields& fields) const {
  if (fields.count == 0) return;
  std::string names;
  for (const std::string& name : fields.names) names += (names.empty() ? "" : ",") + name;
  log_({LogLevel::kWarning,
        "ignored_fields",
        {{"id", call.id}, {"count", std::to_string(fields.count)}, {"names", names}}});
}

// ----------------------------------------------------------------------------------------------- completions ------

std::shared_ptr<Exchange> Api::Completions(Call& call) {
  const ModelFacts& model = *Ready().model;
  const JsonEntryCheck lists = CompletionLists(model.context, model.max_choices);
  if (!MentionsGrammar(call.request.body)) {
    return StartCompletion(call, ParseCompletion(call.TakeBody(lists).json, model));
  }
  ReleasedJson<OrderedJson> body = call.TakeOrderedBody(lists);
  const OrderedJson grammars = TakeGrammars(&body.json);
  const Json rest = body.json;
  return StartCompletion(call, ParseCompletion(rest, grammars, model));
}

std::shared_ptr<Exchange> Api::StartCompletion(Call& call, CompletionRequest request) {
  if (request.generate.grammar.empty()) return Begin(call, std::move(request));
  const ModelFacts& model = *serving_.model;
  const auto shared = std::make_shared<CompletionRequest>(std::move(request));
  return Await(
      compiles_, "as many grammars wait to be compiled as may; try again in a moment", call,
      [shared, &model] { CheckGrammar(*shared, model); },
      [this, shared](Call& later) { return Begin(later, std::move(*shared)); });
}

std::shared_ptr<Exchange> Api::Begin(Call& call, CompletionRequest request) {
  LogIgnored(call, request.ignored);
  const bool kept = request.stream && options_.answers != nullptr;
  auto exchange =
      std::make_shared<CompletionExchange>(Serve(), std::move(request), identity_.Fingerprint(), call.client());
  if (kept) streams_.Add(exchange);
  exchange->Start();
  return exchange;
}

Answering Api::Serve() const { return {*serving_.model, *serving_.runner, metrics_, log_, options_.answers}; }

// ---------------------------------------------------------------------------------------------------- streams -----

std::shared_ptr<Exchange> Api::Stream(Call& call) {
  (void)Ready();
  if (call.request.method == "HEAD") throw RequestError(kMethodNotAllowed, "", "a stream has no head of its own");
  const std::string id = Unescaped(call.request.path).substr(std::string_view(kStreamsPath).size());
  const int64_t seen = SeenEvents(call.request.last_event_id, id);
  if (options_.answers == nullptr) {
    throw RequestError(kNotFound, "", "streams can be taken up again where the server has a --journal");
  }
  if (seen >= 0) CheckSeen({id, call.owner}, seen);
  std::optional<AnswerLog::Kept> kept = options_.answers->TakeOver({id, call.owner});
  const auto exchange = kept ? Continue(*kept, call.client()) : nullptr;
  if (exchange == nullptr) {
    throw RequestError(kNotFound, "",
                       options_.answers->lost() ? "the journal is lost, and with it the stream"
                                                : "there is no such stream here, or no longer");
  }
  streams_.Replace(exchange);
  exchange->Resume(std::move(*kept), seen);
  return exchange;
}

// Before the stream is taken over: whoever reads it now loses nothing by the mistake of another. A request that is not kept, or
// makes no sense, is left to Stream.
// Errors: RequestError for an event that no answer to the request of this stream has.
void Api::CheckSeen(const AnswerLog::Name& name, int64_t seen) const {
  const std::optional<std::string> request = options_.answers->RequestOf(name);
  if (!request) return;
  const ModelFacts& model = *serving_.model;
  int64_t most = 0;
  try {
    const StoredRequest stored = Restore(*request);
    CheckKept(stored, {}, model);
    most = stored.request.MostEvents(model.context);
  } catch (const InvalidInput&) {
    return;
  }
  if (seen < most) return;
  throw RequestError(400, "",
                     "Last-Event-ID: this stream has fewer than " + std::to_string(most) +
                         " events, so none with number " + std::to_string(seen));
}

// Null: what is kept makes no sense, and is no longer kept.
std::shared_ptr<CompletionExchange> Api::Continue(const AnswerLog::Kept& kept, Client client) {
  try {
    StoredRequest stored = Restore(kept.request);
    CheckKept(stored, kept, *serving_.model);
    return std::make_shared<CompletionExchange>(Serve(), std::move(stored), std::move(client));
  } catch (const InvalidInput& error) {
    options_.answers->Drop(kept.key, error.what());
    return nullptr;
  }
}

void Api::ContinueStreams() {
  if (options_.answers == nullptr) return;
  for (const AnswerLog::Name& name : options_.answers->Unfinished()) {
    auto kept = options_.answers->TakeOver(name);
    if (!kept) continue;
    const auto nobody = std::make_shared<DetachedConnection>();
    const auto exchange = Continue(*kept, {nobody, RequestId(""), name.owner, ""});
    if (exchange == nullptr) continue;
    streams_.Add(exchange);
    auto shared = std::make_shared<AnswerLog::Kept>(std::move(*kept));
    nobody->Post([exchange, shared] { exchange->Resume(std::move(*shared), -1); });
  }
}

// ---------------------------------------------------------------------------------------------------- others ------

std::shared_ptr<Exchange> Api::Models(Call& call) {
  return call.Send({{"object", "list"}, {"data", OrderedJson::array({ModelJson(*Ready().model, identity_)})}});
}

std::shared_ptr<Exchange> Api::OneModel(Call& call) {
  const ModelFacts& model = *Ready().model;
  const std::string id = Unescaped(call.request.path).substr(std::string_view(kModelsPath).size());
  if (id == model.id) return call.Send(ModelJson(model, identity_));
  throw RequestError(kNotFound, "model", "this server serves " + model.id + " only; GET /v1/models names it");
}

std::shared_ptr<Exchange> Api::TokenizerInfo(Call& call) {
  const Tokenizer& tokenizer = RequireTokenizer(*Ready().model);
  const std::vector<int32_t> eos = tokenizer.eos_ids();
  OrderedJson info = {{"kind", tokenizer.kind()}, {"vocab_size", tokenizer.vocab_size()}};
  AddToken(tokenizer, "bos", tokenizer.bos_id(), &info);
  AddToken(tokenizer, "eos", eos.empty() ? std::optional<int32_t>() : eos.front(), &info);
  info["eos_token_ids"] = eos;
  AddToken(tokenizer, "pad", tokenizer.pad_id(), &info);
  const ModelFacts& model = *serving_.model;
  const std::string chat_template = model.chat != nullptr ? model.chat->source() : tokenizer.chat_template();
  info["chat_template"] = chat_template.empty() ? OrderedJson(nullptr) : OrderedJson(chat_template);
  info["chat_template_sha256"] = model.chat == nullptr ? OrderedJson(nullptr) : OrderedJson(model.chat->sha256());
  if (model.chat == nullptr) info["chat_refusal"] = model.chat_refusal;
  return call.Send(std::move(info));
}

std::string Api::State() const {
  if (!ready_) return "loading";
  switch (serving_.runner->health()) {
    case JobRunner::Health::kLoading: return "loading";
    case JobRunner::Health::kSilent: return "silent";
    case JobRunner::Health::kStalled: return "stalled";
    case JobRunner::Health::kFailed: return "failed";
    case JobRunner::Health::kOk: break;
  }
  return draining_ ? "draining" : "ok";
}

std::shared_ptr<Exchange> Api::Health(Call& call) {
  const std::string state = State();
  const int status = state == "ok" ? 200 : kUnavailable;
  OrderedJson body = {{"status", state}};
  OrderedJson workers = OrderedJson::array();
  if (ready_) {
    for (const JobRunner::Worker& worker : serving_.runner->workers()) {
      workers.push_back(
          {{"pid", worker.pid}, {"state", worker.state}, {"restarts", worker.restarts}, {"device", worker.device}});
    }
  }
  if (!workers.empty()) body["workers"] = std::move(workers);
  if (options_.answers != nullptr) body["journal"] = options_.answers->lost() ? "lost" : "ok";
  call.connection->Send({status, "application/json", Dump(std::move(body)), {}});
  return nullptr;
}

std::shared_ptr<Exchange> Api::MetricsText(Call& call) {
  if (ready_) {
    metrics_.SetLoad(serving_.runner->load());
    metrics_.SetFaults(serving_.runner->faults());
    metrics_.SetWorkers(serving_.runner->workers());
  }
  if (options_.dropped_log_lines) metrics_.SetDroppedLogLines(options_.dropped_log_lines());
  call.connection->Send({200, "text/plain; version=0.0.4; charset=utf-8", metrics_.Text(), {}});
  return nullptr;
}

std::shared_ptr<Exchange> Api::Version(Call& call) {
  return call.Send({{"version", options_.version}, {"commit", options_.commit}});
}

std::shared_ptr<Exchange> Api::ChatPage(Call& call) {
  // The page needs nothing from elsewhere, and may not ask for it.
  call.connection->Send({200,
                         "text/html; charset=utf-8",
                         std::string(kChatPage),
                         {{"Content-Security-Policy",
                           "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                           "connect-src 'self'; base-uri 'none'; form-action 'none'"},
                          {"Cache-Control", "no-cache"}}});
  return nullptr;
}

}  // namespace stoch::serve
