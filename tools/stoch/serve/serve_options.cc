// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/serve/serve_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "app/options/chat_options.h"
#include "app/options/rank_division.h"
#include "app/options/seed.h"
#include "kernels/base/error.h"

namespace stoch::cli {
namespace {

constexpr int64_t kAdminConnections = 32;
constexpr const char* kKeyVariable = "STOCH_API_KEY";

void AddListening(CLI::App& command, ServeOptions* options) {
  serve::HttpOptions& http = options->server.http;
  command.add_option("--host", http.host, "Address to listen on, or unix:PATH of a socket (mode 0660)")
      ->capture_default_str();
  command.add_option("--port", http.port, "0 = any free one; the address is printed")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  command.add_option("--admin-listen", options->admin_listen,
                     "ADDRESS:PORT or unix:PATH where /health and /metrics are answered besides, without a key, by "
                     "connections of its own; default: none");
  command
      .add_option("--allowed-host", options->allowed_hosts,
                  "Name that requests may have in Host besides addresses, localhost and --host, against pages that "
                  "make their name lead here (repeatable); default: any name, or none where the server listens on "
                  "loopback without a key")
      ->allow_extra_args(false);
  command
      .add_option("--cors-origin", http.browsers.cors_origins,
                  "Origin whose pages may read answers, \"https://app.example\", or * for all (repeatable); default: "
                  "none")
      ->allow_extra_args(false);
}

void AddKeys(CLI::App& command, ServeOptions* options) {
  command.add_option("--api-key", options->key, "Asked for as Bearer token on every endpoint but /health and /")
      ->envname(kKeyVariable);
  command.add_option("--api-key-file", options->key_file,
                     "File of such keys, one a line (# begins a comment); each is a client of its own: streams are its "
                     "maker's, and clients that wait take turns");
}

void AddLog(CLI::App& command, ServeOptions* options) {
  command.add_option("--log-format", options->log_format, "Lines of the log: text, or json (one object a line)")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "json"}));
}

void AddEngine(CLI::App& command, ServeOptions* options) {
  command.add_option("--served-model-name", options->server.model_id,
                     "What clients call the model; default its folder's name");
  command.add_option("--max-queue", options->max_queue, "Sequences that may wait; more are refused with 429")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option(
          "--max-queue-per-key", options->max_queue_per_key,
          "Sequences of one key that may wait (of one address, where there are no keys); default: as --max-queue")
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option("--stall-limit", options->stall_limit_s,
                  "Seconds without a new operator after which a worker is killed; default 10 on GPUs, 120 on CPUs")
      ->check(CLI::Range(1, 86400));
  command
      .add_option("--silence-limit", options->silence_limit_s,
                  "Seconds without any sign of life after which a worker is killed; /health shows it after 5")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  command
      .add_option("--give-up-after", options->give_up_after_s,
                  "Seconds that starts of workers may fail, none being ready or loading, before a server that was "
                  "ready ends with exit code 3")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  CLI::Option* replicas =
      command.add_option("--replicas", options->replicas, "Workers, each with the whole model; default 1")
          ->check(CLI::Range(1, 64));
  CLI::Option* replica_devices =
      command.add_option("--replica-devices", options->replica_devices,
                         "GPUs of each replica: \"0,1;2,3\"; default: --device for each of them");
  CLI::Option* launch =
      command
          .add_option(
              "--launch", options->launch,
              "Words that start the worker on ranks, which divide the model: \"mpirun -n 2 --host a:1,b:1\"; ';' "
              "between those of several replicas")
          ->excludes(replicas)
          ->excludes(replica_devices);
  AddRankDivision(command, &options->engine.device.ranks, launch);
  command.add_flag("--in-process", options->in_process, "No workers: the engine runs in this process, and ends it")
      ->excludes(replicas)
      ->excludes(replica_devices)
      ->excludes(launch)
      ->excludes(command.get_option("--journal"));
  command
      .add_option("--default-seed", options->default_seed,
                  "Seed of requests that name none; default: one is drawn for each, and returned")
      ->transform(SignedSeed());
}

void AddChat(CLI::App& command, ServeOptions* options) {
  AddChatOptions(command, &options->chat);
  command
      .add_option("--reasoning-parser", options->reasoning_parser,
                  "How the model writes its reasoning, which chats then have apart (reasoning_content): none, qwen3, "
                  "deepseek_r1")
      ->capture_default_str()
      ->check(CLI::IsMember(
          std::vector<std::string>(std::begin(serve::kReasoningFormats), std::end(serve::kReasoningFormats))));
  command
      .add_option("--grammar-compile-time", options->grammar_compile_s,
                  "Seconds of a processor that a grammar or JSON schema of a request may take to compile")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 600.0));
  std::vector<std::string> forms(std::begin(serve::kToolForms), std::end(serve::kToolForms));
  forms.emplace_back("auto");
  command
      .add_option("--tool-call-parser", options->tool_call_parser,
                  "How the model writes calls of tools, which chats then have apart (tool_calls): hermes, llama3_json, "
                  "none, or auto: as its chat template shows them")
      ->capture_default_str()
      ->check(CLI::IsMember(std::move(forms)));
}

void AddStreams(CLI::App& command, ServeOptions* options) {
  CLI::Option* journal =
      command.add_option("--journal", options->journal,
                         "File in which streams are kept, so that clients and a restarted server take them up again "
                         "(GET /v1/streams/ID); default: none");
  command
      .add_option("--journal-sync", options->journal_sync, "What a journal outlives: normal (a crash), full (of power)")
      ->capture_default_str()
      ->check(CLI::IsMember({"normal", "full"}))
      ->needs(journal);
}

void AddLimits(CLI::App& command, ServeOptions* options) {
  command.add_option("--max-body", options->max_body_mib, "MiB of a request's body")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command.add_option("--max-bodies", options->max_bodies_mib, "MiB of the bodies of all requests; more are told 503")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option("--max-answer-values", options->server.api.max_answer_values,
                  "Of one request: choices x (prompt if echoed + max_tokens) x (1 + logprobs alternatives)")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command
      .add_option("--http-threads", options->http_threads,
                  "Threads that tokenize prompts and write answers; connections have their own")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  command.add_option("--idle-timeout", options->idle_timeout_s, "Seconds between requests of a connection")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  command.add_option("--shutdown-timeout", options->shutdown_timeout_s, "Seconds that SIGTERM leaves running requests")
      ->capture_default_str()
      ->check(CLI::Range(0, 86400));
}

// "127.0.0.1:9000", "[::1]:9000" or "unix:PATH". Errors: InvalidInput.
void SetAddress(const std::string& text, serve::HttpOptions* http) {
  if (text.starts_with("unix:")) {
    http->host = text;
    return;
  }
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const char* const end = text.data() + text.size();
  const bool has_port = colon != std::string::npos && colon + 1 < text.size();
  const bool is_number =
      has_port && std::from_chars(text.data() + colon + 1, end, http->port) == std::from_chars_result{end, std::errc()};
  if (!is_number || host.empty()) {
    throw InvalidInput(fmt::format("--admin-listen {}: expected ADDRESS:PORT or unix:PATH", text));
  }
  http->host = host;
}

// A browser sends origins like "https://app.example:8443" and names like "app.example": others would never match.
// Errors: InvalidInput.
void CheckNames(const ServeOptions& options) {
  for (const std::string& name : options.allowed_hosts) {
    if (name.empty() || name.find_first_of("/ ") != std::string::npos) {
      throw InvalidInput(fmt::format("--allowed-host {}: expected a name like app.example", name));
    }
  }
  for (const std::string& origin : options.server.http.browsers.cors_origins) {
    const size_t scheme = origin.find("://");
    const bool has_scheme = scheme != std::string::npos && scheme > 0 && scheme + 3 < origin.size();
    if (origin == "*" || (has_scheme && origin.find_first_of("/ ", scheme + 3) == std::string::npos)) continue;
    throw InvalidInput(fmt::format(
        "--cors-origin {}: expected SCHEME://HOST[:PORT] without a path, like https://app.example, or *", origin));
  }
}

}  // namespace

void SetListening(ServeOptions& options) {
  using HostCheck = serve::BrowserOptions::HostCheck;
  serve::HttpOptions& http = options.server.http;
  CheckNames(options);
  if (options.max_bodies_mib < options.max_body_mib) {
    throw InvalidInput(
        fmt::format("--max-bodies {} is less than --max-body {}: a body of that size would never be read",
                    options.max_bodies_mib, options.max_body_mib));
  }
  http.max_bodies_bytes = options.max_bodies_mib << 20;
  http.browsers.allowed_hosts = options.allowed_hosts;
  http.browsers.allowed_hosts.push_back(http.host);
  if (!options.allowed_hosts.empty()) {
    http.browsers.check_host = HostCheck::kAlways;
  } else if (options.server.api.api_keys.empty()) {  // a page has no key either
    http.browsers.check_host = HostCheck::kOnLoopback;
  }
  if (options.admin_listen.empty()) return;
  serve::HttpOptions& admin = options.server.admin.emplace();
  SetAddress(options.admin_listen, &admin);
  admin.io_threads = 1;
  admin.api_threads = 1;
  admin.max_connections = kAdminConnections;
  admin.browsers.check_host = options.allowed_hosts.empty() ? HostCheck::kOnLoopback : HostCheck::kAlways;
  admin.browsers.allowed_hosts = http.browsers.allowed_hosts;
}

void AddServeOptions(CLI::App& command, ServeOptions* options) {
  AddServedEngine(command, &options->engine);
  AddListening(command, options);
  AddKeys(command, options);
  AddStreams(command, options);
  AddEngine(command, options);
  AddChat(command, options);
  AddLimits(command, options);
  AddLog(command, options);
}

void CheckKey(const ServeOptions& options) {
  const char* from_environment = std::getenv(kKeyVariable);
  if (options.key.empty() && from_environment != nullptr) {
    throw InvalidInput(
        fmt::format("{} is set and empty: set it to a key, or unset it to serve everybody", kKeyVariable));
  }
  // A header's value has no blanks around it, and no control characters: no request could bring such a key.
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; };
  const std::string& key = options.key;
  if (key.starts_with(' ') || key.ends_with(' ') || std::any_of(key.begin(), key.end(), is_control)) {
    throw InvalidInput("--api-key (" + std::string(kKeyVariable) +
                       ") begins or ends with a space, or has a control character such as the end of a line");
  }
}

std::vector<std::string> ReplicaDevices(const ServeOptions& options) {
  std::vector<std::string> devices;
  if (options.replica_devices.empty()) {
    devices.resize(static_cast<size_t>(options.replicas.value_or(1)));
    return devices;
  }
  for (const std::string& numbers : CLI::detail::split(options.replica_devices, ';')) {
    if (numbers.empty() || numbers.find_first_not_of("0123456789,") != std::string::npos) {
      throw InvalidInput(
          fmt::format("--replica-devices {}: expected numbers of GPUs like \"0,1;2,3\"", options.replica_devices));
    }
    devices.push_back("cuda:" + numbers);
  }
  if (options.replicas && devices.size() != static_cast<size_t>(*options.replicas)) {
    throw InvalidInput(fmt::format("--replica-devices names the devices of {} replicas, --replicas says {}",
                                   devices.size(), *options.replicas));
  }
  return devices;
}

namespace {

// A path with a slash, or a name on PATH, of a file that may be run.
bool CanBeRun(const std::string& program) {
  const auto can_be_run = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
  };
  if (program.find('/') != std::string::npos) return can_be_run(program);
  const char* const path = std::getenv("PATH");
  const std::vector<std::string> folders = CLI::detail::split(path == nullptr ? "/usr/bin:/bin" : path, ':');
  return std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
    return can_be_run((folder.empty() ? "." : folder) + "/" + program);
  });
}

}  // namespace

std::vector<std::vector<std::string>> Launches(const ServeOptions& options) {
  std::vector<std::vector<std::string>> launches;
  if (options.launch.empty()) return launches;
  for (const std::string& launch : CLI::detail::split(options.launch, ';')) {
    // Blanks between words; quotes keep them together.
    launches.push_back(CLI::detail::split_up(launch));
    if (launches.back().empty()) {
      throw InvalidInput(fmt::format("--launch {}: expected words like mpirun -n 2, got none", options.launch));
    }
    if (!CanBeRun(launches.back().front())) {
      throw InvalidInput(fmt::format("--launch {}: there is no program {}", launch, launches.back().front()));
    }
  }
  if (!options.engine.arithmetic.files.empty()) {
    throw InvalidInput("--launch: files of --mp, --smooth and --mask are not told to other ranks");
  }
  return launches;
}

}  // namespace stoch::cli
