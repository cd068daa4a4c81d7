// SPDX-License-Identifier: Apache-2.0
#include "app/common_options.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "app/command.h"
#include "app/demo_model.h"
#include "app/host/standard_error.h"
#include "app/interrupt.h"
#include "app/options/max_memory.h"
#include "app/output.h"
#include "app/placement_options.h"
#include "app/progress.h"
#include "engine/placement.h"
#include "kernels/base/error.h"
#include "kernels/registry.h"
#include "kernels/wrappers/blocking_backend.h"
#include "kernels/wrappers/verifying_backend.h"
#include "loader/file.h"

namespace stoch::cli {

void AddOutputOptions(CLI::App& command, OutputOptions* options) {
  command.add_flag("--json", options->json, "Print one JSON object instead of text");
  AddQuietOption(command, &options->quiet);
}

void AddQuietOption(CLI::App& command, bool* quiet) {
  command.add_flag("--quiet", *quiet, "No progress, no summary, only warnings and errors on standard error");
}

void AddDeviceOptions(CLI::App& command, DeviceOptions* options) {
  command.add_option("--device", options->device, "auto, cpu, cuda:0, or several: cuda:0,1")->capture_default_str();
  command
      .add_option("--device-map", options->device_map,
                  "auto, balanced, balanced_low_0, sequential, or a file {module: device} ending in .json")
      ->capture_default_str();
  command.add_option("--max-memory", options->max_memory, "Per device: 0=60GiB,1=60GiB");
  command
      .add_option("--split", options->split,
                  "How a model is divided over devices: layer, row (every matrix by its output features), sequence "
                  "(positions dealt over 2, 4 or 8), or sequence:P,row:R")
      ->capture_default_str();
  command
      .add_option(
          "--pass-rows", options->pass_rows,
          "Rows of a prompt computed at once, where it may be cut: fewer take less memory and more time, the bits "
          "are the same; 0 = what the device wants and has room for")
      ->check(CLI::Range(0, 65536));
  command.add_option("--threads", options->threads, "CPU threads; 0 = every core")->check(CLI::Range(0, 4096));
  command.add_option("--cpu-variant", options->cpu_variant,
                     "CPU kernels: scalar, avx2, avx512bw, avx512vbmi (x86), neon (AArch64); default the fastest");
  command.add_flag("--launch-blocking", options->launch_blocking,
                   "Wait after every operator, so that an error names the one that failed (slow)");
  command.add_flag("--verify-transfers", options->verify_transfers,
                   "Compare what devices sent each other with what arrived, on the host (slow)");
}

std::string GivenPlacement(const DeviceOptions& options) {
  const DeviceOptions plain;
  if (options.split != plain.split) return "--split " + options.split;
  if (options.device_map != plain.device_map) return "--device-map " + options.device_map;
  if (!options.max_memory.empty()) return "--max-memory " + options.max_memory;
  return options.pass_rows == 0 ? "" : "--pass-rows " + std::to_string(options.pass_rows);
}

void RequireOneDevice(const DeviceOptions& options, const std::string& command) {
  const std::string given = GivenPlacement(options);
  if (!given.empty()) throw InvalidInput(given + ": has no meaning in " + command + ", which takes one device");
}

std::shared_ptr<Backend> Open(const DeviceOptions& options) {
  std::string notice;
  std::shared_ptr<Backend> backend =
      OpenBackend(options.device, {.threads = options.threads, .cpu_variant = options.cpu_variant}, &notice);
  if (!notice.empty()) spdlog::warn(notice);
  if (options.launch_blocking) backend = std::make_shared<BlockingBackend>(std::move(backend));
  if (options.verify_transfers) backend = std::make_shared<VerifyingBackend>(std::move(backend));
  return backend;
}

PlacementOptions PlacementFrom(const DeviceOptions& options, const Backend& backend) {
  PlacementOptions placement;
  ParseSplit("--split", options.split, backend.devices().size(), &placement);
  if (options.split != "layer" && options.device_map != "auto") {
    throw InvalidInput("--device-map " + options.device_map + ": has no meaning with --split " + options.split +
                       ", which uses every device");
  }
  placement.max_memory = ParseMaxMemory(options.max_memory);
  placement.fit_kv = options.fit_kv;
  placement.ranks = options.ranks.count;
  placement.local = options.ranks.local;
  const std::string& map = options.device_map;
  if (map.size() > 5 && map.compare(map.size() - 5, 5, ".json") == 0) {
    constexpr int64_t kMaxMapBytes = int64_t{16} << 20;
    placement.map_json = ReadSmallFile(map, kMaxMapBytes);
    placement.map_name = map;
  } else {
    placement.policy = map;
  }
  return placement;
}

std::string RandomModelNames() {
  std::vector<std::string_view> names = NamedDecoderConfigs();
  return fmt::format("{}", fmt::join(names, ", "));
}

CLI::Option* AddModelOptions(CLI::App& command, ModelOptions* options) {
  command
      .add_option("--tokenizer", options->tokenizer,
                  "Folder or GGUF file with another tokenizer (random: models have none)")
      ->transform(ModelPath);
  command.add_option("--context", options->context, "Positions of a sequence; 0 = the model's, or what fits in memory")
      ->check(CLI::Range(int64_t{0}, kMostTokens));
  return AddModelOption(
      command, &options->model,
      "Hugging Face folder, org/name[@revision] in the local Hugging Face cache, GGUF file (NAME.gguf), demo "
      "(the model that comes with stoch), or random:SHAPE[,layers=N][,vocab=N][:SEED] with SHAPE one of " +
          RandomModelNames());
}

CLI::Option* AddModelOption(CLI::App& command, std::string* model, const std::string& help) {
  return command.add_option("--model,MODEL", *model, help)->transform(ModelPath);
}

std::unique_ptr<Tokenizer> OpenTokenizer(const ModelOptions& options, const ModelFiles& files) {
  if (options.tokenizer.empty() && files.folder.empty()) return nullptr;
  const std::filesystem::path folder =
      options.tokenizer.empty() ? files.folder : std::filesystem::path(options.tokenizer);
  std::unique_ptr<Tokenizer> tokenizer = LoadTokenizer(folder);
  if (tokenizer->vocab_size() > files.config.vocab_size) {
    throw InvalidInput(fmt::format("{}: the tokenizer has {} tokens, expected at most vocab_size = {} of {}",
                                   folder.string(), tokenizer->vocab_size(), files.config.vocab_size, files.name));
  }
  return tokenizer;
}

void AddArithmeticOptions(CLI::App& command, ArithmeticOptions* options) {
  command.add_option("--precision", options->precision, "sc, fp32, or fp16 (GPU only)")->capture_default_str();
  command
      .add_option("--sc", options->sc,
                  "SC settings, later ones win: preset=NAME, attention=MODE, lm_head=0|1, NAME=VALUE, "
                  "OPERATOR.NAME=VALUE; `stoch help sc` lists them all")
      ->allow_extra_args(false);
  AddScFileOptions(command, &options->files);
}

void AddScFileOptions(CLI::App& command, ScFileOptions* options) {
  ScFileOptions& files = *options;
  command.add_option("--mp", files.mp, "Mixed stream lengths: a threshold table or its wrapper (JSON)");
  command.add_option("--mp-normalise", files.mp_normalise, "fixed, or call as published: rows depend on their window")
      ->capture_default_str();
  command
      .add_option_function<std::vector<std::string>>(
          "--smooth",
          [&files](const std::vector<std::string>& paths) {
            if (paths.size() > 2) throw CLI::ValidationError("--smooth", "expected two files at most");
            files.smooth = paths.front();
            files.more_smooth = paths.size() > 1 ? paths[1] : "";
          },
          "Smoothing factors of linears, or of qk after RoPE (safetensors of stoch calibrate, or JSON); twice: both")
      ->allow_extra_args(false);
  command.add_option("--mask", files.mask,
                     "Hybrid mask: sc, fp, intN, fp8_e4m3 or mxint8 for each operator and layer (JSON)");
  command.add_option("--mask-bits", files.mask_bits, "Bits of every integer entry of the mask");
}

void Apply(const ArithmeticOptions& options, EngineOptions* engine) {
  engine->precision = ParsePrecision(options.precision);
  if (engine->precision != Precision::kSc && !options.sc.empty()) {
    throw InvalidInput("--sc: has no meaning with --precision " + options.precision);
  }
  if (engine->precision != Precision::kSc && !options.files.empty()) {
    throw InvalidInput("--mp, --smooth, --mask: have no meaning with --precision " + options.precision);
  }
  engine->sc = ParseScModelConfig(options.sc);
  std::vector<std::string> notices = ReadScFiles(options.files, &engine->sc);
  if (options.own_lengths) RequireOwnLengths(*engine);
  if (DependsOnCall(engine->sc)) {
    notices.emplace_back("normalise=call: a row's stream length depends on its window, so batching is off");
  }
  if (!options.notices) return;
  for (const std::string& notice : notices) WarnOnce(notice);
}

void RequireOwnLengths(const EngineOptions& engine) {
  if (!DependsOnCall(engine.sc)) return;
  throw InvalidInput("normalise=call makes an answer depend on its batch: use a table with metric_lo and metric_hi");
}

}  // namespace stoch::cli
