// stoch serve: the HTTP server.

#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "engine/serve/server.h"
#include "kernels/base/error.h"
#include "tools/stoch/command.h"
#include "tools/stoch/common_options.h"
#include "tools/stoch/interrupt.h"
#include "tools/stoch/output.h"
#include "tools/stoch/version.h"

namespace stoch::cli {
namespace {

constexpr int64_t kDefaultContext = 8192;
constexpr int64_t kDefaultKvTokens = 32768;  // all sequences together, where the context is not longer
constexpr std::chrono::milliseconds kPoll{50};

struct Options {
  ModelOptions model;
  DeviceOptions device;
  ArithmeticOptions arithmetic;
  OutputOptions output;
  serve::ServerOptions server;
  int64_t max_sequences = 32;
  int64_t kv_tokens = 0;
  int64_t max_body_mib = 8;
  int64_t idle_timeout_s = 75;
  int64_t shutdown_timeout_s = 30;
  int64_t stall_limit_s = 120;
};

// One line per event on standard error: time, level, event, key=value.
serve::LogSink MakeLog(bool quiet) {
  auto log = spdlog::stderr_color_mt("serve");  // called from every thread
  log->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  if (quiet) log->set_level(spdlog::level::warn);
  return [log = std::move(log)](const serve::LogLine& line) {
    constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::info, spdlog::level::warn, spdlog::level::err};
    log->log(kLevels[static_cast<size_t>(line.level)], "{}", serve::FormatLogLine(line));
  };
}

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

// Until a signal asks for the end or the engine is no more.
void WaitForEnd(const serve::Server& server) {
  while (!InterruptFlag() && server.failure() == nullptr) std::this_thread::sleep_for(kPoll);
}

ExitCode Run(Options options) {
  ModelFiles files = OpenModelFiles(options.model.model);
  const std::unique_ptr<Tokenizer> tokenizer = OpenTokenizer(options.model, files);
  const EngineOptions engine_options = EngineOptionsFrom(options, files);
  std::shared_ptr<Backend> backend = Open(options.device);

  options.server.api.version = VersionNumber();
  options.server.api.commit = Commit();
  options.server.http.max_body_bytes = static_cast<uint64_t>(options.max_body_mib) << 20;
  options.server.http.idle_timeout = std::chrono::seconds(options.idle_timeout_s);
  options.server.scheduler.stalled_after = std::chrono::seconds(options.stall_limit_s);
  const serve::LogSink log = MakeLog(options.output.quiet);
  // Declared before the server, which uses it to its end.
  std::unique_ptr<Engine> engine;
  serve::Server server(options.server, log);
  PrintLine(fmt::format("listening on http://{}", server.address()));
  engine = OpenEngine(std::move(backend), std::move(files), engine_options, options.device, options.output);
  server.Attach(*engine, tokenizer.get());
  log({serve::LogLevel::kInfo,
       "ready",
       {{"model", engine->model_name()},
        {"precision", std::string(PrecisionName(engine->options().precision))},
        {"sc", engine->sc_description()},
        {"context", std::to_string(engine->shape().context)},
        {"kv_tokens", std::to_string(engine->shape().kv_tokens)},
        {"max_sequences", std::to_string(options.max_sequences)}}});

  WaitForEnd(server);
  if (const std::exception_ptr failure = server.failure()) std::rethrow_exception(failure);
  log({serve::LogLevel::kInfo, "draining", {{"timeout_s", std::to_string(options.shutdown_timeout_s)}}});
  const bool answered = server.Drain(std::chrono::seconds(options.shutdown_timeout_s));
  log({answered ? serve::LogLevel::kInfo : serve::LogLevel::kWarning,
       "stopped",
       {{"all_answered", answered ? "1" : "0"}}});
  if (server.stuck()) {
    // Its thread cannot be ended from outside, and destructors would wait for it.
    log({serve::LogLevel::kError, "engine_stuck", {}});
    spdlog::shutdown();
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
  command.add_option("--api-key", server.api.api_key, "Asked for as Bearer token on every endpoint but /health")
      ->envname("STOCH_API_KEY");
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
