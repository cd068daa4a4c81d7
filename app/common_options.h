// SPDX-License-Identifier: Apache-2.0
// Options that several subcommands share, and what they open.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/options/rank_options.h"
#include "engine/engine.h"
#include "engine/placement.h"
#include "kernels/backend.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/tokenizer/tokenizer.h"
#include "models/sc_model_config.h"
#include "research/sc_files.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace stoch::cli {

// --json, --quiet.
struct OutputOptions {
  bool json = false;
  bool quiet = false;
};
void AddOutputOptions(CLI::App& command, OutputOptions* options);
// --quiet alone: of commands without results on standard output.
void AddQuietOption(CLI::App& command, bool* quiet);

// --device, --device-map, --max-memory, --split, --pass-rows, --threads, --cpu-variant, --launch-blocking,
// --verify-transfers.
struct DeviceOptions {
  std::string device = "auto";
  std::string device_map = "auto";
  std::string max_memory;
  std::string split = "layer";
  int64_t pass_rows = 0;  // EngineOptions::max_pass_rows; 0: what the command or the device wants
  int threads = 0;
  std::string cpu_variant;
  bool launch_blocking = false;
  bool verify_transfers = false;
  std::optional<KvFit> fit_kv;  // no option: of servers
  RankOptions ranks;            // of commands with AddRankOptions
};
void AddDeviceOptions(CLI::App& command, DeviceOptions* options);
// The option that says how a model is divided, or in which passes it runs, as it was given; "": none was.
std::string GivenPlacement(const DeviceOptions& options);
// Of commands that open models on one device. Errors: InvalidInput where options say how a model is divided.
void RequireOneDevice(const DeviceOptions& options, const std::string& command);
// Opens the backend; a notice of "auto" goes to the log. Errors: InvalidInput.
std::shared_ptr<Backend> Open(const DeviceOptions& options);
// What each device would hold, as --split, --device-map, --max-memory and --pass-rows say (engine/placement.h).
// Errors: InvalidInput.
DecoderPlacement PlaceOn(const DeviceOptions& options, const ModelFiles& files, const Backend& backend,
                         EngineOptions* engine);

// --model, --tokenizer, --context.
struct ModelOptions {
  std::string model;
  std::string tokenizer;  // folder; "" = the model's
  int64_t context = 0;
};
// The model may also stand by itself, as in `stoch serve MODEL`.
CLI::Option* AddModelOptions(CLI::App& command, ModelOptions* options);
// --model and MODEL alone.
CLI::Option* AddModelOption(CLI::App& command, std::string* model, const std::string& help);
// The tokenizer of --tokenizer or the model's folder; nullptr for random models without --tokenizer.
// Errors: InvalidInput, also if the tokenizer has ids beyond the model's vocabulary.
std::unique_ptr<Tokenizer> OpenTokenizer(const ModelOptions& options, const ModelFiles& files);

// --precision, --sc.
struct ArithmeticOptions {
  std::string precision = "sc";
  std::vector<std::string> sc;
  ScFileOptions files = {};  // --mp, --mp-normalise, --smooth, --mask, --mask-bits
  bool own_lengths = false;  // no option: RequireOwnLengths, before the notice about lengths that depend on a call
  bool notices = true;       // no option: false where another process has told them
};
void AddArithmeticOptions(CLI::App& command, ArithmeticOptions* options);
// The files alone.
void AddScFileOptions(CLI::App& command, ScFileOptions* files);
// Sets precision and SC configuration, files read; notices about them go to the log, once in a command. Errors: InvalidInput, also for --sc next to an exact precision.
void Apply(const ArithmeticOptions& options, EngineOptions* engine);
// Errors: InvalidInput where lengths depend on a call, for commands whose answers must not depend on a batch.
void RequireOwnLengths(const EngineOptions& engine);

// Engine::Open where PlaceOn says, with a loading bar that Ctrl-C can end; the engine's notices go to the log.
std::unique_ptr<Engine> OpenEngine(std::shared_ptr<Backend> backend, ModelFiles files, EngineOptions options,
                                   const DeviceOptions& devices, const OutputOptions& output);

// "llama-3.2-1b", ... of random:, for help texts.
std::string RandomModelNames();

}  // namespace stoch::cli
