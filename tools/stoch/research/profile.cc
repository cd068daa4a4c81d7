// SPDX-License-Identifier: Apache-2.0
// stoch profile: how far every operator of every layer is from its exact product.

#include "research/profile.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "app/common_options.h"
#include "app/interrupt.h"
#include "app/options/cost_options.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/report/profile.h"
#include "app/report/sensitivity.h"
#include "app/version.h"
#include "engine/digest_cache.h"
#include "kernels/base/error.h"
#include "kernels/base/usable_threads.h"
#include "loader/sha256.h"
#include "tools/stoch/commands.h"
#include "tools/stoch/research/profile_plots.h"

namespace stoch::cli {
namespace {

struct Options {
  ModelOptions model;
  DeviceOptions device;
  OutputOptions output;
  std::string file;
  std::string mode = "local";
  std::vector<std::string> configs;
  ScFileOptions files;
  CostFlags cost;
  ProfileOptions profile;
  std::string format = "md";
  std::string plot;  // a folder; "": none
  bool sensitivity = false;
};

// Makes the folder of --plot before anything runs, so that a wrong one costs no time.
void MakePlotFolder(const std::string& path) {
  if (path.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(path, ignored);
  if (!std::filesystem::is_directory(path, ignored)) throw InvalidInput("--plot " + path + ": cannot be created");
}

void WritePlots(const ProfileReport& report, const std::string& folder) {
  for (const auto& [name, svg] : ProfilePlots(report)) {
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << svg;
    file.close();
    if (!file) throw InvalidInput(path.string() + ": cannot be written");
  }
}

std::unique_ptr<Engine> OpenOne(const Options& options, const ArithmeticOptions& arithmetic,
                                const std::shared_ptr<Backend>& backend) {
  EngineOptions engine;
  Apply(arithmetic, &engine);
  engine.context = options.profile.ctx;
  // A window in one pass where that may be.
  constexpr int64_t kMostRows = 2048;
  engine.max_pass_rows = std::clamp<int64_t>(options.profile.ctx, 1, kMostRows);
  if (engine.precision != Precision::kFp32) engine.base_rows = ProfileBaseRows(options.profile);
  return OpenEngine(backend, OpenModelFiles(options.model.model), engine, options.device, options.output);
}

// What --sensitivity leaves without effect. Errors: InvalidInput that names it.
void CheckSensitivity(const CLI::App& command, const Options& options) {
  if (options.configs.size() > 1)
    throw InvalidInput("--sensitivity: takes one --sc, got " + std::to_string(options.configs.size()));
  for (const char* option :
       {"--plot", "--mode", "--heads", "--array", "--tile-rows", "--energy", "--trace", "--trace-mode"}) {
    if (command.get_option(option)->count() == 0) continue;
    throw InvalidInput(std::string(option) + ": has no meaning with --sensitivity");
  }
}

// What every report says of the files.
template <typename Report>
void NameFiles(const ModelFiles& files, const std::string& text, Report* report) {
  report->model = files.name;
  report->model_sha256 = FindDigest(files, UsableThreads(), false, [] { return InterruptFlag().load(); });
  ThrowIfInterrupted();
  report->text_sha256 = Sha256Hex(text);
}

// The report of --sensitivity, in the place of a profile.
ExitCode RunSensitivity(const Options& options, const ModelFiles& files, const std::string& text,
                        std::span<const int32_t> ids, const ArithmeticOptions& run) {
  EngineOptions engine;
  Apply(run, &engine);
  SensitivityReport report;
  report.config = Describe(engine.sc);
  report.ctx = options.profile.ctx;
  report.windows = options.profile.max_windows;
  report.bits = 7;
  const EvaluatedText evaluated{
      {report.ctx, report.windows, UsableThreads()}, Open(options.device), options.model.model, ids};
  const std::filesystem::path base =
      std::filesystem::temp_directory_path() / ("stoch-sensitivity-" + std::to_string(getpid()) + ".base");
  report.ranked = MeasureSensitivity(evaluated, engine.sc, report.bits, base.string());
  if (options.format != "md") NameFiles(files, text, &report);
  Print(FormatSensitivity(report, options.format));
  return kDone;
}

ExitCode Run(const CLI::App& command, const Options& given) {
  Options options = given;
  if (options.sensitivity) CheckSensitivity(command, options);
  if (options.output.json) options.format = "json";
  options.profile.propagated = options.mode == "propagated";
  options.profile.cost = ParseCostOptions(options.cost, true);
  const std::optional<EnergyTable> energy = ReadEnergy(options.cost, true);
  if (options.configs.empty()) options.configs.emplace_back();
  std::vector<ArithmeticOptions> runs;
  for (const std::string& config : options.configs) {
    runs.push_back({.precision = "sc", .sc = {}, .files = options.files});
    if (!config.empty()) runs.back().sc = {config};
    EngineOptions unused;
    Apply(runs.back(), &unused);
  }
  const ModelFiles files = OpenModelFiles(options.model.model);
  const std::unique_ptr<Tokenizer> tokenizer = OpenTokenizer(options.model, files);
  if (tokenizer == nullptr) throw InvalidInput(files.name + ": has no tokenizer; give --tokenizer DIR");
  const std::string text = ReadTextFile(options.file);
  const std::vector<int32_t> ids = tokenizer->Encode(text, {});
  CheckProfile(files.config, ids.size(), options.profile);
  if (options.sensitivity) return RunSensitivity(options, files, text, ids, runs.front());
  MakePlotFolder(options.plot);
  const std::unique_ptr<TraceWriter> trace = OpenTrace(options.cost, runs.size());
  const std::shared_ptr<Backend> backend = Open(options.device);

  ProfileReport report;
  report.energy = energy;
  report.mode = options.mode;
  report.ctx = options.profile.ctx;
  const std::unique_ptr<Engine> exact = OpenOne(options, {.precision = "fp32", .sc = {}}, backend);
  for (const ArithmeticOptions& run : runs) {
    const std::unique_ptr<Engine> configured = OpenOne(options, run, backend);
    ProgressBar bar("profile", options.output.quiet);
    options.profile.on_progress = [&bar](int64_t done, int64_t total) {
      bar.Update(done, total);
      ThrowIfInterrupted();
    };
    if (trace != nullptr) {
      options.profile.sink = trace->sink();
      options.profile.on_cost = [&](const ScCostCollector& cost) {
        FinishTrace(trace.get(), cost, *configured, files, text, VersionLine());
      };
    }
    report.results.push_back(ProfileModel(*exact, *configured, files, ids, options.profile));
    bar.Clear();
  }
  NameFiles(files, text, &report);
  if (!options.plot.empty()) WritePlots(report, options.plot);
  Print(FormatProfile(report, options.format));
  return kDone;
}

}  // namespace

CommandBody AddProfile(CLI::App& command) {
  command.description("Errors of every layer and operator, quantization and streams apart");
  command.footer(
      "Examples:\n"
      "  stoch profile demo --file text --sc stoc_len=64\n"
      "  stoch profile --model demo --file text --sc stoc_len=128 --sc stoc_len=32 --mode propagated -o csv\n"
      "  stoch profile --model demo --file text --mp table.json --heads --array 32,32,64 -o jsonl");
  auto options = std::make_shared<Options>();
  AddModelOptions(command, &options->model)->required();
  command.remove_option(command.get_option("--context"));
  command.add_option("--file", options->file, "The text; - is standard input")->required();
  command.add_option("--ctx", options->profile.ctx, "Tokens of a window")->capture_default_str();
  command.add_option("--max-windows", options->profile.max_windows, "Windows of the text")->capture_default_str();
  command
      .add_option("--mode", options->mode,
                  "local: every operator with the inputs of the exact forward; propagated: with those of its own")
      ->capture_default_str()
      ->check(CLI::IsMember({"local", "propagated"}));
  command.add_flag("--heads", options->profile.heads, "Rows for every head of qk and av too");
  command
      .add_option("--sc", options->configs,
                  "A configuration, as in other commands; several --sc are as many, one after the other")
      ->allow_extra_args(false);
  AddScFileOptions(command, &options->files);
  AddCostOptions(command, &options->cost);
  command.add_option("-o,--output", options->format, "md, csv (rows only), json or jsonl")
      ->capture_default_str()
      ->check(CLI::IsMember({"md", "csv", "json", "jsonl"}));
  command.add_option("--plot", options->plot,
                     "Figures into this folder: a heat map of every configuration, and errors over stream length");
  command.add_flag(
      "--sensitivity", options->sensitivity,
      "In place of all that: the divergence from the exact model with each operator of each layer alone in "
      "streams, and in int7, as stoch calibrate mask ranks them");
  AddDeviceOptions(command, &options->device);
  AddOutputOptions(command, &options->output);
  command.get_option("--json")->excludes(command.get_option("--output"));
  return [options, &command] { return Run(command, *options); };
}

}  // namespace stoch::cli
