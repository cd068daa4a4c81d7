// SPDX-License-Identifier: Apache-2.0
// The options of `stoch serve`.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/serve/server.h"
#include "tools/stoch/serve/engine_options.h"

namespace stoch::cli {

struct ServeOptions {
  ServedEngine engine;
  serve::ServerOptions server;
  std::string admin_listen;  // "": none
  std::vector<std::string> allowed_hosts;
  std::string key;       // "": none
  std::string key_file;  // of further ones
  std::optional<uint64_t> default_seed;
  int64_t http_threads = 4;
  int64_t max_queue = 1024;
  std::optional<int64_t> max_queue_per_key;  // none: as max_queue
  int64_t max_body_mib = 5;
  int64_t max_bodies_mib = 256;
  int64_t idle_timeout_s = 75;
  int64_t shutdown_timeout_s = 30;
  std::optional<int64_t> stall_limit_s;  // none: by device
  int64_t silence_limit_s = 15;
  int64_t give_up_after_s = 60;
  std::optional<int64_t> replicas;  // none: one, or as many as replica_devices names
  std::string replica_devices;
  bool in_process = false;
  std::string launch;
  std::string journal;
  std::string journal_sync = "normal";
  std::string log_format = "text";
  ChatSettings chat;
  std::string reasoning_parser = serve::kReasoningFormats[0];
  double grammar_compile_s = 0.5;
  std::string tool_call_parser = "auto";  // or one of serve::kToolForms

  int64_t max_queue_per_client() const { return std::min(max_queue, max_queue_per_key.value_or(max_queue)); }
};

void AddServeOptions(CLI::App& command, ServeOptions* options);

// Where the server listens, for whom, and what it reads at once; after the keys are there. Errors: InvalidInput.
void SetListening(ServeOptions& options);

// Errors: InvalidInput for a key that is given and empty, or that no header can hold, on the command line or in the
//         environment.
void CheckKey(const ServeOptions& options);

// "0,1;2,3" as one device for each replica; "" for all of them if --replica-devices is not given. Errors: InvalidInput.
std::vector<std::string> ReplicaDevices(const ServeOptions& options);

// The words of each launch of --launch, of one replica each; none without it. Errors: InvalidInput.
std::vector<std::vector<std::string>> Launches(const ServeOptions& options);

}  // namespace stoch::cli
