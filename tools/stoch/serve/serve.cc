// stoch serve: the HTTP server.

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/serve/server.h"
#include "kernels/base/error.h"
#include "tools/stoch/command.h"
#include "tools/stoch/common_options.h"
#include "tools/stoch/interrupt.h"
#include "tools/stoch/output.h"
#include "tools/stoch/serve/log.h"
#include "tools/stoch/serve/served_files.h"
#include "tools/stoch/version.h"

namespace stoch::cli {
namespace {

constexpr int64_t kDefaultContext = 8192;
constexpr int64_t kDefaultKvTokens = 32768;  // all sequences together, where the context is not longer
constexpr std::chrono::milliseconds kPoll{50};
constexpr std::chrono::milliseconds kLook{1000};      // at the model's files
constexpr std::chrono::milliseconds kFarewell{1000};  // for last words to leave
constexpr int64_t kOtherFiles = 64;                   // descriptors that are not connections
constexpr const char* kKeyVariable = "STOCH_API_KEY";

struct Options {
  ModelOptions model;
  DeviceOptions device;
  ArithmeticOptions arithmetic;
  OutputOptions output;
  serve::ServerOptions server;
  CLI::Option* api_key = nullptr;
  std::optional<int64_t> default_seed;
  int64_t http_threads = 4;
  int64_t max_sequences = 32;
  int64_t kv_tokens = 0;
  int64_t max_body_mib = 8;
  int64_t idle_timeout_s = 75;
  int64_t shutdown_timeout_s = 30;
  int64_t stall_limit_s = 120;
};

// The first line of VersionText, "stoch 0.1.0".
std::string VersionNumber() {
  const std::string text = VersionText();
  const std::string first = text.substr(0, text.find('\n'));
  return first.substr(first.find(' ') + 1);
}

EngineOptions EngineOptionsFrom(const Options& options, const ModelFiles& files) {
  EngineOptions engine;
  Apply(options.arithmetic, &engine);
  engine.context = options.model.context;
  engine.max_sequences = options.max_sequences;
  // A request that names no limit reserves a whole context: the model's own would leave room for one at a time.
  if (engine.context == 0) engine.context = std::min(files.config.max_position_embeddings, kDefaultContext);
  const int64_t context = ShapeOf(files.config, engine).context;
  engine.kv_tokens = options.kv_tokens;
  if (engine.kv_tokens == 0) {
    const int64_t all = context * options.max_sequences;
    engine.kv_tokens = std::min(all, std::max(context, kDefaultKvTokens));
  }
  return engine;
}

// What: as many open files as the system lets it have, and how many connections they are enough for.
int64_t RaiseFileLimit(int64_t max_connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return max_connections;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return max_connections;
  return std::min(max_connections, std::max<int64_t>(1, static_cast<int64_t>(limit.rlim_cur) - kOtherFiles));
}

// A page of a mapped file that is no longer there. Nothing can be saved, but the log can say why.
extern "C" void OnBusError(int) {
  constexpr char kMessage[] = "error: a file of the model became shorter while it was served\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  _exit(kDeviceFailure);
}

void CheckKey(const Options& options) {
  const char* from_environment = std::getenv(kKeyVariable);
  const bool empty = options.server.api.api_key.empty();
  if (empty && from_environment != nullptr) {
    throw InvalidInput(
        fmt::format("{} is set and empty: set it to a key, or unset it to serve everybody", kKeyVariable));
  }
  if (empty && options.api_key->count() > 0) throw InvalidInput("--api-key is empty");
}

bool IsLoopback(const std::string& address) { return address.starts_with("127.") || address.starts_with("[::1]"); }

// Until a signal asks for the end or the engine is no more. Weights that are read where they are mapped must stay as
// they are: other bytes would be answers of another model. Errors: DeviceError where they do not.
void WaitForEnd(serve::Server& server, const std::vector<FileStamp>& mapped, const serve::LogSink& log) {
  auto looked = std::chrono::steady_clock::now();
  while (!InterruptFlag() && server.failure() == nullptr) {
    std::this_thread::sleep_for(kPoll);
    if (std::chrono::steady_clock::now() - looked < kLook) continue;
    looked = std::chrono::steady_clock::now();
    const std::string changed = ChangedFile(mapped);
    if (changed.empty()) continue;
    log({serve::LogLevel::kError, "model_changed", {{"file", changed}}});
    server.Drain(std::chrono::milliseconds(0));
    throw DeviceError(changed + " was changed while it was served");
  }
}

ExitCode Run(Options options) {
  CheckKey(options);
  ModelFiles files = OpenModelFiles(options.model.model);
  const std::unique_ptr<Tokenizer> tokenizer = OpenTokenizer(options.model, files);
  const EngineOptions engine_options = EngineOptionsFrom(options, files);
  std::shared_ptr<Backend> backend = Open(options.device);

  options.server.api.version = VersionNumber();
  options.server.api.commit = Commit();
  options.server.http.api_threads = static_cast<int>(options.http_threads);
  options.server.http.max_connections = RaiseFileLimit(options.server.http.max_connections);
  options.server.http.max_body_bytes = static_cast<uint64_t>(options.max_body_mib) << 20;
  options.server.http.idle_timeout = std::chrono::seconds(options.idle_timeout_s);
  options.server.scheduler.stalled_after = std::chrono::seconds(options.stall_limit_s);
  if (options.default_seed) options.server.api.default_seed = static_cast<uint64_t>(*options.default_seed);
  std::vector<FileStamp> stamps = files.weights->files();
  serve::IdentityParts identity = DigestSmallFiles(files, options.model.tokenizer);
  std::signal(SIGBUS, OnBusError);
  const ServeLog serve_log(options.output.quiet);
  options.server.api.dropped_log_lines = [&serve_log] { return serve_log.dropped(); };
  const serve::LogSink log = serve_log.sink();
  // Declared before the server, which uses it to its end.
  std::unique_ptr<Engine> engine;
  serve::Server server(options.server, log);
  PrintLine(fmt::format("listening on http://{}", server.address()));
  engine = OpenEngine(std::move(backend), std::move(files), engine_options, options.device, options.output);
  server.Attach(*engine, tokenizer.get(), std::move(identity));
  log({serve::LogLevel::kInfo,
       "ready",
       {{"model", engine->model_name()},
        {"precision", std::string(PrecisionName(engine->options().precision))},
        {"sc", engine->sc_description()},
        {"context", std::to_string(engine->shape().context)},
        {"kv_tokens", std::to_string(engine->shape().kv_tokens)},
        {"max_sequences", std::to_string(options.max_sequences)},
        {"max_connections", std::to_string(options.server.http.max_connections)}}});
  if (options.server.api.api_key.empty() && !IsLoopback(server.address())) {
    log({serve::LogLevel::kWarning, "no_api_key", {{"address", server.address()}}});
  }
  const DigestThread digest(options.model.model, stamps, [&](const std::string& weights, const std::string& error) {
    server.SetWeightsDigest(weights);
    log({error.empty() ? serve::LogLevel::kInfo : serve::LogLevel::kError,
         "weights_digest",
         {{"sha256", weights}, {"error", error}}});
  });
  // GPUs have a copy.
  if (engine->backend().devices().front().kind != DeviceKind::kCpu) stamps.clear();

  WaitForEnd(server, stamps, log);
  if (const std::exception_ptr failure = server.failure()) {
    server.Drain(kFarewell);  // its jobs have been told; their answers are to leave
    std::rethrow_exception(failure);
  }
  log({serve::LogLevel::kInfo, "draining", {{"timeout_s", std::to_string(options.shutdown_timeout_s)}}});
  const bool answered = server.Drain(std::chrono::seconds(options.shutdown_timeout_s));
  log({answered ? serve::LogLevel::kInfo : serve::LogLevel::kWarning,
       "stopped",
       {{"all_answered", answered ? "1" : "0"}}});
  if (server.stuck()) {
    // Its thread cannot be ended from outside, and destructors would wait for it.
    log({serve::LogLevel::kError, "engine_stuck", {}});
    std::this_thread::sleep_for(kFarewell);
    std::_Exit(kDeviceFailure);
  }
  return kDone;
}

}  // namespace

CommandBody AddServe(CLI::App& command) {
  command.description("OpenAI-compatible HTTP server");
  command.footer(
      "Examples:\n"
      "  stoch serve --model demo\n"
      "  stoch serve --model DIR --device cuda:0 --host 0.0.0.0 --port 8000 --api-key KEY\n"
      "  curl http://127.0.0.1:8080/v1/completions -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 50}'\n"
      "SIGTERM or Ctrl-C drains; a second one ends at once.");
  auto options = std::make_shared<Options>();
  serve::ServerOptions& server = options->server;
  AddModelOptions(command, &options->model)->required();
  command.add_option("--host", server.http.host, "Address to listen on")->capture_default_str();
  command.add_option("--port", server.http.port, "0 = any free one; the address is printed")->capture_default_str();
  options->api_key =
      command
          .add_option("--api-key", server.api.api_key, "Asked for as Bearer token on every endpoint but /health and /")
          ->envname(kKeyVariable);
  command.add_option("--served-model-name", server.model_id, "What clients call the model; default its folder's name");
  command.add_option("--max-sequences", options->max_sequences, "Sequences of one pass")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  command
      .add_option("--kv-tokens", options->kv_tokens,
                  fmt::format("Tokens of all sequences together; default {}, or one context where that is longer",
                              kDefaultKvTokens))
      ->check(CLI::NonNegativeNumber);
  command.add_option("--max-queue", server.scheduler.max_queue, "Sequences that may wait; more are refused with 429")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command.add_flag("!--no-prefix-reuse", server.scheduler.prefix_reuse,
                   "Compute every prompt again, also where it begins like an earlier one");
  command.add_option("--stall-limit", options->stall_limit_s, "Seconds of one pass after which /health says stalled")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  command.add_option("--max-body", options->max_body_mib, "MiB of a request's body")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command
      .add_option("--max-answer-values", server.api.max_answer_values,
                  "Of one request: choices x (prompt if echoed + max_tokens) x (1 + logprobs alternatives)")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command
      .add_option("--http-threads", options->http_threads,
                  "Threads that tokenize prompts and write answers; connections have their own")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  command.add_option("--default-seed", options->default_seed,
                     "Seed of requests that name none; default: one is drawn for each, and returned");
  command.add_option("--chat-date", server.api.chat_date,
                     "Date for chat templates that write one, unless a request gives its own; default: the template's, "
                     "or today in UTC");
  command.add_option("--idle-timeout", options->idle_timeout_s, "Seconds between requests of a connection")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  command.add_option("--shutdown-timeout", options->shutdown_timeout_s, "Seconds that SIGTERM leaves running requests")
      ->capture_default_str()
      ->check(CLI::Range(0, 86400));
  AddArithmeticOptions(command, &options->arithmetic);
  AddDeviceOptions(command, &options->device);
  command.add_flag("--quiet", options->output.quiet, "Only warnings and errors on standard error");
  return [options] { return Run(*options); };
}

}  // namespace stoch::cli
