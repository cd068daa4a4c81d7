// SPDX-License-Identifier: Apache-2.0
// stoch calibrate: smoothing factors, thresholds of mixed stream lengths and masks from a text; tables of functions.

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "app/common_options.h"
#include "app/interrupt.h"
#include "app/options/value_rules.h"
#include "app/output.h"
#include "app/report/sensitivity.h"
#include "app/version.h"
#include "engine/digest_cache.h"
#include "kernels/base/error.h"
#include "kernels/base/usable_threads.h"
#include "loader/checkpoint/safetensors_writer.h"
#include "loader/file.h"
#include "loader/json_text.h"
#include "loader/research/nonlinear_file.h"
#include "loader/sha256.h"
#include "research/calibrate/calibrate_lengths.h"
#include "research/calibrate/calibrate_scales.h"
#include "research/calibrate/error_weights.h"
#include "research/calibrate/mp_table.h"
#include "research/calibrate/nonlinear_table.h"
#include "research/calibrate/sensitivity.h"
#include "tools/stoch/commands.h"
#include "tools/stoch/research/pareto.h"

namespace stoch::cli {
namespace {

struct Options {
  std::string kind, file, out;
  ModelOptions model;
  DeviceOptions device;
  OutputOptions output;
  CalibrationWindows windows;
  ScaleCalibration scales;
  LengthCalibration lengths;
  std::string weights = "uniform";
  std::vector<std::string> sc;
  ScFileOptions files;
  NonlinearPieces pieces;
  std::vector<double> range;
  std::string pareto;               // as given
  std::string share;                // as given
  std::vector<std::string> shares;  // of it
};

// The model, the text, and what OUT says of them.
struct Inputs {
  ModelFiles files;
  std::string text;
  std::vector<int32_t> ids;

  std::map<std::string, std::string> Origin(const Options& options) const {
    const int threads = UsableThreads();
    const std::string version = VersionText();
    return {{"command", "stoch calibrate " + options.kind},
            {"version", version.substr(0, version.find('\n'))},
            {"ctx", std::to_string(options.windows.ctx)},
            {"max_windows", std::to_string(options.windows.count)},
            {"model_sha256", FindDigest(files, threads, false, [] { return false; })},
            {"text_sha256", Sha256Hex(text)}};
  }
};

void RunScales(const Options& options, const Inputs& inputs) {
  ScaleCalibration calibration = options.scales;
  calibration.ctx = options.windows.ctx;
  calibration.windows = options.windows.count;
  calibration.threads = options.windows.threads;
  calibration.method = options.kind == "awq" ? ScaleMethod::kAwq : ScaleMethod::kSmoothQuant;
  const auto scales = CalibrateScales(calibration, Open(options.device), options.model.model, inputs.ids);
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, values] : scales) {
    const auto size = static_cast<int64_t>(values.size());
    const int64_t head_dim = inputs.files.config.head_dim;
    specs.push_back(
        {name, DType::kF32, name.ends_with(".qk") ? std::vector{size / head_dim, head_dim} : std::vector{size}});
  }
  std::map<std::string, std::string> metadata = inputs.Origin(options);
  metadata.insert({{"method", options.kind},
                   {"alpha", fmt::format("{}", calibration.alpha)},
                   {"bits", std::to_string(calibration.bits)},
                   {"share", calibration.share ? "1" : "0"}});
  if (calibration.qk_alpha) metadata["qk_alpha"] = fmt::format("{}", *calibration.qk_alpha);
  SafetensorsWriter writer(options.out, specs, metadata);
  for (const auto& [name, values] : scales) writer.Append(std::as_bytes(std::span(values)));
  writer.Finish();
}

// --sc, --smooth and --mask.
ScModelConfig Settings(const Options& options) {
  ScModelConfig sc = ParseScModelConfig(options.sc);
  ScFileOptions files = options.files;
  files.mp.clear();
  for (const std::string& notice : ReadScFiles(files, &sc)) spdlog::warn(notice);
  return sc;
}

// OUT-SUFFIX.json.
std::string PathOf(const Options& options, const std::string& suffix) {
  const std::string end = ".json";
  const std::string stem =
      options.out.ends_with(end) ? options.out.substr(0, options.out.size() - end.size()) : options.out;
  return stem + '-' + suffix + end;
}

// The files of RunLengths: a table, or one for each average, and a plan that compares them with uniform lengths.
std::vector<std::string> LengthOutputs(const Options& options) {
  std::vector<std::string> paths;
  for (const int average : ParseAverages(options.pareto)) paths.push_back(PathOf(options, std::to_string(average)));
  paths.push_back(paths.empty() ? options.out : PathOf(options, "plan"));
  return paths;
}

void ReportLengths(const std::string& path, const CalibratedLengths& lengths) {
  spdlog::info("{}: {:.2f} cycles on average by multiplications, {:.2f} by rows", path, lengths.mac_average,
               lengths.average);
  for (const auto& [op, rho] : lengths.candidates) {
    std::string text;
    constexpr const char* kNames[] = {"amax", "-amax", "l2", "-l2", "crest", "-crest"};
    for (size_t i = 0; i < rho.size(); ++i) {
      text += fmt::format("{}{} {}", i == 0 ? "" : ", ", kNames[i], rho[i] ? fmt::format("{:.3f}", *rho[i]) : "none");
    }
    const MpDispatch& own = lengths.table.dispatch.at(op);
    spdlog::info("{} by {}{}: rank correlations {}", op, own.sign < 0 ? "-" : "", own.metric, text);
  }
}

// Divergences of every calibration, measured once for each length.
void SetDivergences(std::vector<LengthCalibration>* calibrations, const Options& options, const Inputs& inputs,
                    const std::shared_ptr<Backend>& backend) {
  std::map<int, std::map<std::string, double>> by_length;
  for (LengthCalibration& calibration : *calibrations) {
    calibration.divergence_length = DivergenceLength(calibration);
    const auto [found, is_new] = by_length.try_emplace(calibration.divergence_length);
    if (is_new) {
      found->second = MeasureDivergences(calibration, calibration.divergence_length, options.out + ".base", backend,
                                         options.model.model, inputs.ids);
    }
    calibration.divergences = found->second;
  }
}

void RunLengths(const Options& options, const Inputs& inputs) {
  LengthCalibration calibration = options.lengths;
  calibration.windows = options.windows;
  calibration.sc = Settings(options);
  const std::vector<int> averages = ParseAverages(options.pareto);
  std::vector<LengthCalibration> calibrations;
  const int ref = calibration.ref > 0 ? calibration.ref : calibration.levels.front();
  for (const int average : averages) {
    if (average < calibration.levels.back()) {
      throw InvalidInput(
          fmt::format("--pareto {}: the shortest of --levels is {}", options.pareto, calibration.levels.back()));
    }
    if (average > calibration.levels.front()) {
      throw InvalidInput(
          fmt::format("--pareto {}: the longest of --levels is {}", options.pareto, calibration.levels.front()));
    }
    calibration.budget = static_cast<double>(average) / ref;
    calibrations.push_back(calibration);
  }
  if (averages.empty()) calibrations.push_back(calibration);
  for (const LengthCalibration& one : calibrations) CheckLengthCalibration(one, inputs.files.config);
  CheckWindows(calibration.windows, inputs.ids.size());
  const std::shared_ptr<Backend> backend = Open(options.device);
  std::map<std::string, double> weights;
  if (options.weights == "measured") {
    weights = MeasureErrorWeights(calibration, backend, options.model.model, inputs.ids);
  } else if (options.weights == "divergence") {
    SetDivergences(&calibrations, options, inputs, backend);
  } else if (options.weights != "uniform") {
    if (!options.weights.ends_with(".json")) {
      throw InvalidInput("--weights " + options.weights + ": allowed is uniform, measured, divergence, FILE.json");
    }
    constexpr int64_t kMaxBytes = int64_t{1} << 20;
    weights = ParseErrorWeights(ReadSmallFile(options.weights, kMaxBytes), options.weights, calibration.layer_buckets);
  }
  for (LengthCalibration& one : calibrations) one.weights = weights;
  const std::vector<CalibratedLengths> tables =
      CalibrateLengths(calibrations, backend, options.model.model, inputs.ids);
  const std::vector<std::string> paths = LengthOutputs(options);
  for (size_t i = 0; i < tables.size(); ++i) {
    TableOrigin origin = inputs.Origin(options);
    origin.insert({{"budget", fmt::format("{}", calibrations[i].budget)},
                   {"ref", std::to_string(ref)},
                   {"weights", options.weights.ends_with(".json") ? "file" : options.weights},
                   {"sc", Describe(calibration.sc)}});
    WriteWholeFile(paths[i], MpTableJson(tables[i], origin));
    if (!options.output.quiet) ReportLengths(paths[i], tables[i]);
  }
  if (!averages.empty()) {
    const ParetoPlan plan{options.model.model,
                          options.file,
                          options.sc,
                          options.files,
                          options.windows,
                          averages,
                          {paths.begin(), paths.end() - 1}};
    WriteWholeFile(paths.back(), ParetoPlanJson(plan));
  }
  if (options.output.quiet) return;
  if (!averages.empty()) spdlog::info("{}: its text is the calibration's, so give it another one", paths.back());
  spdlog::info("the loader of the published project would read these thresholds per call");
}

void RunRescale(const Options& options, const Inputs& inputs) {
  if (options.files.mp.empty()) throw InvalidInput("stoch calibrate rescale: give --mp TABLE");
  constexpr int64_t kMaxBytes = int64_t{64} << 20;
  const std::string table = ReadSmallFile(options.files.mp, kMaxBytes);
  WriteWholeFile(options.out,
                 RescaleTable({options.windows, Settings(options)}, table, options.files.mp, inputs.Origin(options),
                              Open(options.device), options.model.model, inputs.ids));
}

double ShareOf(const std::string& text) {
  char* end = nullptr;
  const double share = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(share >= 0 && share <= 1)) {
    throw InvalidInput("--share " + text + ": allowed are numbers in 0..1, as 0.05,0.1");
  }
  return share;
}

void RunNonlinear(const Options& options, const Inputs&) {
  NonlinearPieces pieces = options.pieces;
  if (options.range.size() != 2) throw InvalidInput("--range: allowed are two numbers, as -8,8");
  pieces.lo = options.range[0];
  pieces.hi = options.range[1];
  const std::string version = VersionText();
  WriteNonlinearFile(
      options.out, MakeNonlinearTable(pieces),
      {{"source", fmt::format("stoch calibrate nonlinear, {} chords of {}..{}", pieces.segments, pieces.lo, pieces.hi)},
       {"version", version.substr(0, version.find('\n'))}});
}

// OUT-SHARE.json for each share, and the table that they are made of.
void RunMask(const Options& options, const Inputs& inputs) {
  const ModelFiles& files = inputs.files;
  const ScModelConfig sc = Settings(options);
  const EvaluatedText text{options.windows, Open(options.device), options.model.model, inputs.ids};
  const std::vector<OperatorSensitivity> ranked =
      MeasureSensitivity(text, sc, options.scales.bits, options.out + ".base");
  for (const std::string& share : options.shares) {
    const std::string path = PathOf(options, share);
    WriteWholeFile(path,
                   SensitivityMask(ranked, sc, files.config.num_hidden_layers, ShareOf(share), options.scales.bits));
    if (!options.output.quiet) spdlog::info("{}", path);
  }
  if (!options.output.quiet && !options.output.json) Print(SensitivityTable(ranked, options.scales.bits));
}

struct Kind {
  const char* name;
  void (*run)(const Options&, const Inputs&);
  std::vector<const char*> options;  // that have a meaning here and not in every kind
  bool reads_text = true;            // of a model
};

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = {
      {"smoothquant", RunScales, {"--alpha", "--share", "--qk", "--only"}},
      {"awq", RunScales, {"--bits"}},
      {"mp",
       RunLengths,
       {"--levels", "--budget", "--pareto", "--ref", "--chunks", "--layer-buckets", "--weights", "--metric", "--sign",
        "--protect", "--sc", "--smooth", "--mask", "--mask-bits"}},
      {"rescale", RunRescale, {"--mp", "--sc"}},
      {"mask", RunMask, {"--share", "--bits", "--sc", "--smooth"}},
      {"nonlinear", RunNonlinear, {"--function", "--segments", "--range", "--in-bits", "--out-bits"}, false},
  };
  return kinds;
}

// Refuses options of other kinds.
void CheckOptions(const CLI::App& command, const Kind& kind) {
  for (const Kind& other : Kinds()) {
    for (const char* option : other.options) {
      const auto same = [&](const char* own) { return std::string_view(own) == option; };
      if (command.get_option(option)->count() == 0 || std::any_of(kind.options.begin(), kind.options.end(), same)) {
        continue;
      }
      throw InvalidInput(fmt::format("{}: has no meaning in stoch calibrate {}", option, kind.name));
    }
  }
}

Inputs Read(const Options& options) {
  Inputs inputs{OpenModelFiles(options.model.model), {}, {}};
  const std::unique_ptr<Tokenizer> tokenizer = OpenTokenizer(options.model, inputs.files);
  if (tokenizer == nullptr) throw InvalidInput(inputs.files.name + ": has no tokenizer; give --tokenizer DIR");
  inputs.text = ReadTextFile(options.file);
  inputs.ids = tokenizer->Encode(inputs.text, {});
  return inputs;
}

ExitCode Run(const CLI::App& command, const Options& options) {
  const auto& kinds = Kinds();
  const auto kind =
      std::find_if(kinds.begin(), kinds.end(), [&](const Kind& known) { return options.kind == known.name; });
  if (kind == kinds.end()) {
    throw InvalidInput("stoch calibrate " + options.kind +
                       ": allowed is smoothquant, awq, mp, rescale, mask, nonlinear");
  }
  CheckOptions(command, *kind);
  for (const char* option : {"--model", "--file"}) {
    const bool given = command.get_option(option)->count() > 0;
    if (kind->reads_text && !given) throw InvalidInput(fmt::format("{} is required", option));
    if (!kind->reads_text && given) {
      throw InvalidInput(fmt::format("{}: has no meaning in stoch calibrate {}", option, kind->name));
    }
  }
  if (options.lengths.ref == 0 && command.get_option("--ref")->count() > 0) {
    throw InvalidInput("--ref 0: allowed is 1..65536");
  }
  RequireOneDevice(options.device, "stoch calibrate");
  if (!options.pareto.empty() && command.get_option("--budget")->count() > 0) {
    throw InvalidInput("--budget: has no meaning with --pareto " + options.pareto);
  }
  Options with = options;
  std::istringstream shares(options.share == "{}" ? "" : options.share);  // {}: given without a number
  for (std::string share; std::getline(shares, share, ',');) with.shares.push_back(share);
  const bool is_mask = options.kind == "mask";
  if (is_mask) {
    if (with.shares.empty()) throw InvalidInput("stoch calibrate mask: give --share 0.05,0.1");
    for (const std::string& share : with.shares) {
      ShareOf(share);
      CheckCanWrite(PathOf(options, share));
    }
    if (command.get_option("--bits")->count() == 0) with.scales.bits = 7;
  } else {
    if (!with.shares.empty())
      throw InvalidInput("--share " + with.shares.front() + ": a number is of stoch calibrate mask");
    with.scales.share = command.get_option("--share")->count() > 0;
    for (const std::string& path : LengthOutputs(options)) CheckCanWrite(path);
  }
  with.windows.threads = options.device.threads > 0 ? options.device.threads : UsableThreads();
  kind->run(with, kind->reads_text ? Read(options) : Inputs());
  if (!options.output.json) return kDone;
  if (is_mask || !options.pareto.empty()) {
    nlohmann::ordered_json outputs = nlohmann::ordered_json::array();
    for (const std::string& share : with.shares) outputs.push_back(PathOf(options, share));
    if (!is_mask) outputs = LengthOutputs(options);
    PrintLine(JsonText(nlohmann::ordered_json{{"kind", options.kind}, {"outputs", outputs}}));
    return kDone;
  }
  PrintLine(JsonText(nlohmann::ordered_json{
      {"kind", options.kind}, {"output", options.out}, {"sha256", Sha256Hex(ReadWholeFile(options.out))}}));
  return kDone;
}

void AddNonlinearOptions(CLI::App& command, Options* options) {
  NonlinearPieces& pieces = options->pieces;
  command.add_option("--function", pieces.function, "nonlinear: silu, exp (of softmax) or rsqrt (of rms_norm)");
  command.add_option("--segments", pieces.segments, "nonlinear: chords");
  command.add_option("--range", options->range, "nonlinear: LO,HI of the chords, as -8,8; of rsqrt 1,4")
      ->delimiter(',')
      ->expected(2);
  command.add_option("--in-bits", pieces.in_bits, "nonlinear: binary places that x is rounded to, -8..20");
  command.add_option("--out-bits", pieces.out_bits, "nonlinear: of the result");
}

void AddLengthOptions(CLI::App& command, Options* options) {
  LengthCalibration& lengths = options->lengths;
  lengths.levels = {128, 96, 64};
  command.add_option("--levels", lengths.levels, "mp: stream lengths that fall")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  command.add_option("--budget", lengths.budget, "mp: average length over --ref")->capture_default_str();
  command.add_option(
      "--pareto", options->pareto,
      "mp: LO:HI:STEP: a table OUT-LENGTH.json for each of these average lengths, and a plan of a sweep");
  command.add_option("--ref", lengths.ref, "mp: length of the budget; default the longest level");
  command.add_flag("--chunks", lengths.chunks, "mp: linears have a length for each (row, chunk), not for each row");
  command.add_option("--layer-buckets", lengths.layer_buckets, "mp: layers are divided into so many groups")
      ->capture_default_str();
  command
      .add_option("--weights", options->weights, "mp: of errors: uniform, measured, divergence, or a file {op: number}")
      ->capture_default_str();
  command
      .add_option(
          "--metric", lengths.metric,
          "mp: of rows: amax, l2, crest, or auto: for each operator the one, and the sign, that ranks gains best")
      ->capture_default_str();
  command.add_option("--sign", lengths.sign, "mp: 1, or -1: large metrics get short streams")->capture_default_str();
  command.add_option("--protect", lengths.protect, "mp: share of the channels that keep the longest level")
      ->capture_default_str();
  command
      .add_option("--sc", options->sc,
                  "mp, rescale, mask: SC settings, of mp and rescale besides lengths; `stoch help sc`")
      ->allow_extra_args(false);
  command.add_option("--smooth", options->files.smooth, "mp, mask: smoothing factors");
  command.add_option("--mask", options->files.mask, "mp: hybrid mask");
  command.add_option("--mask-bits", options->files.mask_bits, "mp: bits of every integer entry of the mask");
  command.add_option("--mp", options->files.mp, "rescale: the published table");
}

}  // namespace

CommandBody AddCalibrate(CLI::App& command) {
  command.description(
      "Smoothing factors (--smooth) or mixed stream lengths (--mp) of a model, from a text; tables of functions");
  command.footer(
      "Examples:\n"
      "  stoch calibrate smoothquant --model demo --file text --alpha 0.5 -o smooth.safetensors\n"
      "  stoch calibrate smoothquant --model demo --file text --qk 0.5 --only qk -o qk.safetensors\n"
      "  stoch calibrate awq --model demo --file text --bits 4 -o awq.safetensors\n"
      "  stoch calibrate mp --model demo --file text --levels 128,64,32 --budget 0.375 -o lengths.json\n"
      "  stoch calibrate mp --model demo --file text --levels 128,64,32 --pareto 40:96:8 -o lengths\n"
      "  stoch calibrate mask --model demo --file text --sc stoc_len=32 --share 0.05,0.1,0.2 --bits 7 -o mask\n"
      "  stoch calibrate rescale --model demo --file text --mp published.json -o fixed.json\n"
      "  stoch calibrate nonlinear --function silu --segments 16 --range=-8,8 --out-bits 8 -o silu.safetensors");
  auto options = std::make_shared<Options>();
  command.add_option("kind", options->kind, "smoothquant, awq, mp, rescale, mask or nonlinear")->required();
  AddModelOptions(command, &options->model);
  command.remove_option(command.get_option("--context"));
  command.add_option("--file", options->file, "The text; - is standard input");
  command
      .add_option("-o,--output", options->out,
                  "The file to write: safetensors, or JSON of mp and rescale; of mask OUT-SHARE.json, with --pareto "
                  "OUT-LENGTH.json")
      ->required();
  KeepInputs(command, "--output");
  ScaleCalibration& scales = options->scales;
  command.add_option("--alpha", scales.alpha, "smoothquant: 0 is all on weights, 1 all on activations")
      ->capture_default_str();
  command
      .add_option(
          "--share", options->share,
          "smoothquant: one factor for all linears of an input; mask: shares of the operators of all layers that "
          "become integers, as 0.05,0.1: OUT-SHARE.json each")
      ->expected(0, 1)
      ->type_name("[TEXT]");
  command.add_option("--qk", scales.qk_alpha,
                     "smoothquant: factors of qk after RoPE too: 0 is all on keys, 1 all on queries");
  command
      .add_option_function<std::string>(
          "--only", [&scales](const std::string&) { scales.only_qk = true; }, "smoothquant: qk: of nothing else")
      ->check(CLI::IsMember({"qk"}));
  command.add_option("--bits", scales.bits, "awq: bits of a weight; mask: of integers, 7 if not given")
      ->capture_default_str();
  AddLengthOptions(command, options.get());
  AddNonlinearOptions(command, options.get());
  command.add_option("--ctx", options->windows.ctx, "Tokens of a window")->capture_default_str();
  command.add_option("--max-windows", options->windows.count, "Windows of the text")->capture_default_str();
  AddDeviceOptions(command, &options->device);
  AddOutputOptions(command, &options->output);
  return [options, &command] { return Run(command, *options); };
}

}  // namespace stoch::cli
