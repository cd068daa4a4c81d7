// SPDX-License-Identifier: Apache-2.0
// stoch serve: the HTTP server.

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "app/common_options.h"
#include "app/draft.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/version.h"
#include "engine/gateway/journal.h"
#include "engine/gateway/worker_pool.h"
#include "engine/grammar/grammar_checker.h"
#include "engine/serve/server.h"
#include "engine/worker/local_model.h"
#include "engine/worker/scheduler.h"
#include "kernels/base/error.h"
#include "tools/stoch/commands.h"
#include "tools/stoch/serve/digest_thread.h"
#include "tools/stoch/serve/engine_options.h"
#include "tools/stoch/serve/key_file.h"
#include "tools/stoch/serve/log.h"
#include "tools/stoch/serve/serve_options.h"
#include "tools/stoch/serve/served_files.h"
#include "tools/stoch/serve/service.h"

namespace stoch::cli {
namespace {

constexpr std::chrono::milliseconds kPoll{50};
constexpr std::chrono::milliseconds kHeapLook{1000};
constexpr std::chrono::milliseconds kFarewell{1000};  // for last words to leave
constexpr std::chrono::seconds kPortWait{5};
constexpr int64_t kOtherFiles = 64;  // descriptors that are not connections
constexpr int64_t kAdminFiles = 96;  // of --admin-listen, those of connections too many among them
constexpr size_t kShownDigest = 8;   // of a chat template
constexpr int64_t kWorkerFiles = 6;  // of a worker while one is replaced by another

// The first line of VersionText, "stoch 0.1.0".
std::string VersionNumber() {
  const std::string text = VersionText();
  const std::string first = text.substr(0, text.find('\n'));
  return first.substr(first.find(' ') + 1);
}

// As many open files as the system lets it have, and how many connections they are enough for besides `others`.
int64_t RaiseFileLimit(int64_t max_connections, int64_t others) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return max_connections;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return max_connections;
  return std::min(max_connections, std::max<int64_t>(1, static_cast<int64_t>(limit.rlim_cur) - others));
}

// Bodies and documents of megabytes go back to the system as soon as they are freed. By itself glibc would raise this to
// the largest block that it has freed, and keep as much in the heap of every thread.
void GiveLargeBlocksBack() {
#ifdef __GLIBC__
  constexpr int kLargeBytes = 1 << 20;
  mallopt(M_MMAP_THRESHOLD, kLargeBytes);
  mallopt(M_TRIM_THRESHOLD, kLargeBytes);
#endif
}

// What many small values left, too.
void GiveHeapBack() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// A page of a mapped file that is no longer there. Nothing can be saved, but the log can say why.
extern "C" void OnBusError(int) {
  constexpr char kMessage[] = "error: a file of the model became shorter while it was served\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  _exit(kDeviceFailure);
}

// Nobody elsewhere reaches it.
bool IsLocal(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("[::1]") || address.starts_with("unix:");
}

// Until a signal asks for the end or the engine is no more. The files of the model must stay as they are: what is read
// of them later would be another model's. Errors: DeviceError where they do not.
// gateway: the engine is in another process, and the heap holds requests only. journal: null, or what is to be tidied.
void WaitForEnd(serve::Server& server, const FileWatch& files, Service& service, bool gateway, serve::Journal* journal,
                const serve::LogSink& log) {
  const auto check = [&](bool now) {
    const std::string changed = files.Changed(now);
    if (changed.empty()) return;
    log({serve::LogLevel::kError, "model_changed", {{"part", changed}}});
    server.Drain(std::chrono::milliseconds(0));
    throw DeviceError(changed + " was changed while it was served");
  };
  auto looked = std::chrono::steady_clock::now();
  while (!InterruptFlag() && server.failure() == nullptr) {
    std::this_thread::sleep_for(kPoll);
    // A stalled engine of this process stays stalled; lost workers are replaced here.
    const bool answers = server.answers();
    if (answers && server.health() != serve::JobRunner::Health::kStalled) service.Beat();
    try {
      check(false);
    } catch (const std::bad_alloc&) {  // another time
    }
    if (std::chrono::steady_clock::now() - looked < kHeapLook) continue;
    looked = std::chrono::steady_clock::now();
    if (gateway) GiveHeapBack();
    if (journal != nullptr) journal->Tidy();
  }
  // Workers that cannot read a file any more may all be lost before one looks.
  if (server.failure() != nullptr) check(true);
}

// keys: besides the one of the command line.
void SetServerOptions(ServeOptions& options, const std::vector<std::string>& keys) {
  serve::ServerOptions& server = options.server;
  server.api.version = VersionNumber();
  server.api.commit = Commit();
  if (!options.key.empty()) server.api.api_keys.push_back(options.key);
  server.api.api_keys.insert(server.api.api_keys.end(), keys.begin(), keys.end());
  server.http.api_threads = static_cast<int>(options.http_threads);
  SetListening(options);
  const auto workers = static_cast<int64_t>(std::max(ReplicaDevices(options).size(), Launches(options).size()));
  server.http.max_connections = RaiseFileLimit(
      server.http.max_connections, kOtherFiles + kWorkerFiles * (workers - 1) + (server.admin ? kAdminFiles : 0));
  server.http.max_body_bytes = static_cast<uint64_t>(options.max_body_mib) << 20;
  server.http.idle_timeout = std::chrono::seconds(options.idle_timeout_s);
  server.max_choices = options.max_queue_per_client();  // more would wait for ever
  server.api.reasoning = serve::ReasoningFormatNamed(options.reasoning_parser);
  if (options.tool_call_parser != "auto") server.api.tools = serve::ToolFormNamed(options.tool_call_parser);
  server.api.default_seed = options.default_seed;
}

std::unique_ptr<serve::Journal> OpenJournal(const ServeOptions& options, std::string served,
                                            const serve::LogSink& log) {
  if (options.journal.empty()) return nullptr;
  serve::Journal::Options journal;
  journal.file = options.journal;
  journal.full_sync = options.journal_sync == "full";
  journal.model = std::move(served);
  return std::make_unique<serve::Journal>(std::move(journal), log);
}

struct ServedChat {
  std::unique_ptr<Chat> chat;  // null: none
  std::string why;             // there is none; "" where there is one
};

// Its helper process takes a fifth of a second to start. Errors: InvalidInput for a --chat-template that cannot be used.
ServedChat OpenServedChat(const Tokenizer* tokenizer, const ChatSettings& settings) {
  ServedChat served;
  if (tokenizer == nullptr) {
    served.why = "the model has no tokenizer";
  } else {
    served.chat = OpenChat(*tokenizer, settings, &served.why);
  }
  return served;
}

// A process of its own, which begins as a copy of this one: while it has no threads. Null where there are no grammars.
std::unique_ptr<GrammarChecker> OpenChecker(const ServedModelFiles& served, double compile_seconds) {
  if (served.tokenizer == nullptr || !WhyNoGrammars().empty()) return nullptr;
  constexpr int kBusy = 10;  // times as long as by itself
  GrammarChecker::Limits limits;
  limits.processor = std::chrono::milliseconds(static_cast<int64_t>(1000 * compile_seconds));
  limits.time = kBusy * limits.processor;
  return std::make_unique<GrammarChecker>(*served.tokenizer, served.files.config.vocab_size, limits);
}

// The server uses them to its end.
serve::Server::Language LanguageOf(const ServedModelFiles& served, const ServedChat& chat, GrammarChecker* grammars) {
  serve::Server::Language language{served.tokenizer.get(), chat.chat.get(), chat.why};
  if (grammars != nullptr) {
    language.check_grammar = [grammars](const GrammarSpec& grammar) { grammars->Check(grammar); };
  } else {
    language.grammar_refusal = served.tokenizer == nullptr ? "the model has no tokenizer" : WhyNoGrammars();
  }
  return language;
}

serve::LogLine ReadyLine(const ServeOptions& options, const serve::ServedModel& model, const ServedChat& chat) {
  serve::LogLine line = {serve::LogLevel::kInfo,
                         "ready",
                         {{"model", model.name},
                          {"precision", model.precision},
                          {"sc", model.sc},
                          {"context", std::to_string(model.context)},
                          {"kv_tokens", std::to_string(model.kv_tokens)},
                          {"device", model.device},
                          {"max_sequences", std::to_string(options.engine.max_sequences)},
                          {"max_connections", std::to_string(options.server.http.max_connections)},
                          {"chat", chat.chat == nullptr ? "none" : chat.chat->sha256().substr(0, kShownDigest)}}};
  if (chat.chat == nullptr) line.fields.emplace_back("why", chat.why);
  return line;
}

// Workers, and the wait for the first one to be ready. Errors: what kept it; Interrupted.
std::unique_ptr<serve::WorkerPool> StartWorkers(const ServeOptions& options, const ServedModelFiles& served,
                                                serve::AnswerLog* answers, const serve::LogSink& log) {
  serve::WorkerPool::Options pool_options;
  const std::vector<std::string> devices = ReplicaDevices(options);
  const std::vector<std::vector<std::string>> launches = Launches(options);
  for (const std::vector<std::string>& launch : launches) {
    pool_options.kind = serve::WorkerProcess::Kind::kLaunched;
    pool_options.commands.push_back(LaunchedCommand(options.engine, launch, served.gateway_only));
  }
  for (const std::string& device : launches.empty() ? devices : std::vector<std::string>()) {
    ServedEngine engine = options.engine;
    engine.sharers = std::count(devices.begin(), devices.end(), device);
    pool_options.commands.push_back(WorkerCommand(engine, device, served.gateway_only));
  }
  pool_options.parts = PartsOf(served.notes);
  pool_options.max_queue = options.max_queue;
  pool_options.max_queue_per_client = options.max_queue_per_client();
  pool_options.answers = answers;
  pool_options.stall_limit = std::chrono::seconds(options.stall_limit_s.value_or(0));
  pool_options.silence_limit = std::chrono::seconds(options.silence_limit_s);
  pool_options.give_up_after = std::chrono::seconds(options.give_up_after_s);
  auto pool = std::make_unique<serve::WorkerPool>(std::move(pool_options), log);
  while (!pool->model()) {
    ThrowIfInterrupted();
    if (const std::exception_ptr failure = pool->failure()) std::rethrow_exception(failure);
    std::this_thread::sleep_for(kPoll);
  }
  return pool;
}

// An engine in this process. Errors: InvalidInput, DeviceError.
std::unique_ptr<Engine> OpenLocalEngine(const ServeOptions& options, ServedModelFiles& served) {
  OutputOptions output;
  output.quiet = options.engine.quiet;
  DeviceOptions devices = options.engine.device;
  devices.fit_kv = KvFitOf(options.engine);
  return OpenWithDraft(Open(devices), std::move(served.files), served.engine, devices, output, served.draft.get());
}

// Errors: InvalidInput where it cannot listen; Interrupted.
std::unique_ptr<serve::Server> Listen(const serve::ServerOptions& options, const serve::LogSink& log) {
  const auto deadline = std::chrono::steady_clock::now() + kPortWait;
  bool said = false;
  for (;;) {
    try {
      return std::make_unique<serve::Server>(options, log);
    } catch (const serve::AddressInUse& error) {  // by a server that is about to end
      if (std::chrono::steady_clock::now() > deadline) throw;
      if (!std::exchange(said, true)) log({serve::LogLevel::kWarning, "address_in_use", {{"why", error.what()}}});
    }
    ThrowIfInterrupted();
    std::this_thread::sleep_for(kPoll);
  }
}

ExitCode Run(ServeOptions options) {
  CheckKey(options);
  if (!options.in_process) GiveLargeBlocksBack();
  std::signal(SIGBUS, OnBusError);
  ServedModelFiles served = OpenServed(options.engine);  // bad options are told before anything is begun
  (void)ReplicaDevices(options);
  (void)Launches(options);
  const std::unique_ptr<GrammarChecker> grammars = OpenChecker(served, options.grammar_compile_s);
  // A template that is named has to be there; what a model has for chats can wait until the model is loaded.
  const auto open_chat = [&] { return OpenServedChat(served.tokenizer.get(), options.chat); };
  const bool is_named = !options.chat.chat_template.empty();
  ServedChat chat = is_named ? open_chat() : ServedChat();  // outlives the server
  std::future<ServedChat> opening;
  const KeyFile keys = options.key_file.empty() ? KeyFile() : ReadKeyFile(options.key_file);
  SetServerOptions(options, keys.keys);
  const std::vector<FileStamp> stamps = served.files.weights->files();
  Service service;
  options.server.http.listening_fd = service.listening_fd();
  const ServeLog serve_log(options.engine.quiet,
                           options.log_format == "json" ? ServeLog::Format::kJson : ServeLog::Format::kText);
  options.server.api.dropped_log_lines = [&serve_log] { return serve_log.dropped(); };
  const serve::LogSink log = serve_log.sink();
  // Declared before the server, which uses them to its end.
  const std::unique_ptr<serve::Journal> journal = OpenJournal(options, ServedText(options.engine, served), log);
  options.server.api.answers = journal.get();
  if (!is_named) opening = std::async(std::launch::async, open_chat);
  std::unique_ptr<Engine> engine;
  const std::unique_ptr<serve::Server> listening = Listen(options.server, log);
  serve::Server& server = *listening;
  PrintLine(fmt::format("listening on {}{}", server.port() == 0 ? "" : "http://", server.address()));
  if (options.server.admin) {
    log({serve::LogLevel::kInfo, "admin_listening", {{"address", server.admin_address()}}});
  }
  serve::ServedModel model;
  std::unique_ptr<serve::JobRunner> runner;
  if (options.in_process) {
    if (served.tokenizer != nullptr) {
      served.engine.make_guide =
          MakerOf(std::make_shared<GrammarCompiler>(*served.tokenizer, served.files.config.vocab_size));
    }
    engine = OpenLocalEngine(options, served);
    model = serve::Describe(*engine);
    serve::RunnerOptions limits;
    limits.max_queue = options.max_queue;
    limits.max_queue_per_client = options.max_queue_per_client();
    limits.prefix_reuse = options.engine.prefix_reuse;
    if (options.stall_limit_s) limits.stalled_after = std::chrono::seconds(*options.stall_limit_s);
    runner = std::make_unique<serve::Scheduler>(*engine, limits);
  } else {
    std::unique_ptr<serve::WorkerPool> pool = StartWorkers(options, served, journal.get(), log);
    model = *pool->model();
    runner = std::move(pool);
    served.files = ModelFiles();  // its weights are none of this process's business
    served.draft.reset();
  }
  if (opening.valid()) chat = opening.get();
  server.Attach(model, LanguageOf(served, chat, grammars.get()), std::move(runner), served.identity);
  log(ReadyLine(options, model, chat));
  if (keys.readable_by_others) log({serve::LogLevel::kWarning, "api_key_file_readable", {{"file", options.key_file}}});
  if (options.server.api.api_keys.empty() && !IsLocal(server.address())) {
    log({serve::LogLevel::kWarning, "no_api_key", {{"address", server.address()}}});
  }
  const FileWatch watch(served.notes, log);
  const DigestThread digest(options.engine.model.model, stamps,
                            [&](const std::string& weights, const std::string& error) {
                              server.SetWeightsDigest(weights);
                              log({error.empty() ? serve::LogLevel::kInfo : serve::LogLevel::kError,
                                   "weights_digest",
                                   {{"sha256", weights}, {"error", error}}});
                            });
  service.Ready();
  WaitForEnd(server, watch, service, !options.in_process, journal.get(), log);
  service.Stopping();
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
      "  stoch serve --model DIR --launch \"mpirun -n 2 --host a:1,b:1\"\n"
      "  curl http://127.0.0.1:8080/v1/completions -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 50}'\n"
      "SIGTERM or Ctrl-C drains; a second one ends at once.");
  auto options = std::make_shared<ServeOptions>();
  AddServeOptions(command, options.get());
  return [options] {
    try {
      return Run(*options);
    } catch (const Interrupted&) {  // while the model was loaded: a server that is asked to end has ended as it should
      return kDone;
    }
  };
}

}  // namespace stoch::cli
