// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/serve/engine_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "app/command.h"
#include "kernels/base/error.h"

namespace stoch::cli {
namespace {

constexpr int64_t kDefaultContext = 8192;

}  // namespace

void AddServedEngine(CLI::App& command, ServedEngine* options) {
  AddModelOptions(command, &options->model)->required();
  command.add_option("--max-sequences", options->max_sequences, "Sequences of one pass")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  command
      .add_option("--kv-tokens", options->kv_tokens,
                  "Tokens of all sequences together; default what memory has room for, up to a context for each of "
                  "--max-sequences")
      ->check(CLI::Range(int64_t{0}, kMostTokens));
  command
      .add_option("--gpu-memory-utilization", options->gpu_memory_utilization,
                  "Share of a GPU's memory for all workers on it, which --kv-tokens overrides; of a CPU's free memory "
                  "caches take half")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 1.0));
  command.add_flag("!--no-prefix-reuse", options->prefix_reuse,
                   "Compute every prompt again, also where it begins like an earlier one");
  AddSpeculationOptions(command, &options->speculation);
  AddArithmeticOptions(command, &options->arithmetic);
  AddDeviceOptions(command, &options->device);
  AddQuietOption(command, &options->quiet);
}

EngineOptions EngineOptionsFrom(const ServedEngine& options, const ModelFiles& files) {
  EngineOptions engine;
  Apply(options.arithmetic, &engine);
  RequireOwnLengths(engine);
  engine.context = options.model.context;
  engine.max_sequences = options.max_sequences;
  Apply(options.speculation, &engine);
  // Workspaces grow with it, and fp16 reserves a whole one for a request that names no limit.
  if (engine.context == 0) engine.context = std::min(files.config.max_position_embeddings, kDefaultContext);
  engine.kv_tokens = options.kv_tokens;
  engine.kv_tokens = ShapeOf(files.config, engine).kv_tokens;
  return engine;
}

std::optional<KvFit> KvFitOf(const ServedEngine& options) {
  if (options.kv_tokens != 0) return std::nullopt;
  const auto sharers = static_cast<double>(options.sharers);
  return KvFit{options.gpu_memory_utilization / sharers, KvFit().host_share / sharers};
}

std::vector<std::string> WorkerCommand(const ServedEngine& options, const std::string& device,
                                       const std::vector<std::string>& gateway_files) {
  std::vector<std::string> command = {"/proc/self/exe", "worker"};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) command.insert(command.end(), {name, value});
  };
  add("--model", options.model.model);
  add("--tokenizer", options.model.tokenizer);
  add("--context", std::to_string(options.model.context));
  add("--max-sequences", std::to_string(options.max_sequences));
  add("--kv-tokens", std::to_string(options.kv_tokens));
  add("--gpu-memory-utilization", fmt::format("{}", options.gpu_memory_utilization));
  add("--sharers", std::to_string(options.sharers));
  add("--speculate", options.speculation.speculate);
  add("--draft-tokens", std::to_string(options.speculation.draft_tokens));
  add("--precision", options.arithmetic.precision);
  for (const std::string& sc : options.arithmetic.sc) add("--sc", sc);
  const ScFileOptions& files = options.arithmetic.files;
  add("--mp", files.mp);
  add("--mp-normalise", files.mp_normalise);
  add("--smooth", files.smooth);
  add("--smooth", files.more_smooth);
  add("--mask", files.mask);
  if (files.mask_bits != 0) add("--mask-bits", std::to_string(files.mask_bits));
  add("--device", device.empty() ? options.device.device : device);
  add("--device-map", options.device.device_map);
  add("--max-memory", options.device.max_memory);
  add("--split", options.device.split);
  add("--pass-rows", std::to_string(options.device.pass_rows));
  add("--threads", std::to_string(options.device.threads));
  add("--cpu-variant", options.device.cpu_variant);
  for (const std::string& file : gateway_files) add("--gateway-file", file);
  if (!options.prefix_reuse) command.emplace_back("--no-prefix-reuse");
  if (options.device.launch_blocking) command.emplace_back("--launch-blocking");
  if (options.device.verify_transfers) command.emplace_back("--verify-transfers");
  if (options.quiet) command.emplace_back("--quiet");
  return command;
}

std::vector<std::string> LaunchedCommand(const ServedEngine& options, const std::vector<std::string>& launch,
                                         const std::vector<std::string>& gateway_files) {
  std::vector<std::string> worker = WorkerCommand(options, "", gateway_files);
  std::error_code error;
  worker.front() = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) throw DeviceError("/proc/self/exe: " + error.message());
  std::vector<std::string> command = launch;
  command.insert(command.end(), worker.begin(), worker.end());
  command.insert(command.end(), {"--ranks", "mpi"});
  const RankOptions& ranks = options.device.ranks;
  if (!ranks.layers.empty()) command.insert(command.end(), {"--rank-layers", ranks.layers});
  if (ranks.limit_s > 0) command.insert(command.end(), {"--rank-limit", std::to_string(ranks.limit_s)});
  return command;
}

}  // namespace stoch::cli
