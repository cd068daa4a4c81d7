// SPDX-License-Identifier: Apache-2.0
// stoch calibrate: smoothing factors from a text.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/research/calibrate/calibrate_scales.h"
#include "engine/weights_digest.h"
#include "kernels/base/error.h"
#include "loader/checkpoint/safetensors_writer.h"
#include "loader/sha256.h"
#include "tools/stoch/command.h"
#include "tools/stoch/common_options.h"
#include "tools/stoch/interrupt.h"
#include "tools/stoch/output.h"
#include "tools/stoch/version.h"

namespace stoch::cli {
namespace {

struct Options {
  std::string kind, file, out;
  ModelOptions model;
  DeviceOptions device;
  ScaleCalibration calibration;
};

void Write(const Options& options, const std::string& text, const ModelFiles& files,
           const std::map<std::string, std::vector<float>>& scales) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, values] : scales) {
    specs.push_back({name, DType::kF32, {static_cast<int64_t>(values.size())}});
  }
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const std::string version = VersionText();
  const std::map<std::string, std::string> metadata = {
      {"method", options.kind},
      {"alpha", fmt::format("{}", options.calibration.alpha)},
      {"bits", std::to_string(options.calibration.bits)},
      {"share", options.calibration.share ? "1" : "0"},
      {"ctx", std::to_string(options.calibration.ctx)},
      {"max_windows", std::to_string(options.calibration.windows)},
      {"command", "stoch calibrate " + options.kind},
      {"version", version.substr(0, version.find('\n'))},
      {"model_sha256", DigestWeights(files, threads, [] { return false; })},
      {"text_sha256", Sha256Hex(text)}};
  SafetensorsWriter writer(options.out, specs, metadata);
  for (const auto& [name, values] : scales) writer.Append(std::as_bytes(std::span(values)));
  writer.Finish();
}

ExitCode Run(const Options& options) {
  ScaleCalibration calibration = options.calibration;
  if (options.kind == "awq") {
    calibration.method = ScaleMethod::kAwq;
  } else if (options.kind != "smoothquant") {
    throw InvalidInput("stoch calibrate " + options.kind + ": allowed is smoothquant, awq");
  }
  const ModelFiles files = OpenModelFiles(options.model.model);
  const std::unique_ptr<Tokenizer> tokenizer = OpenTokenizer(options.model, files);
  if (tokenizer == nullptr) throw InvalidInput(files.name + ": has no tokenizer; give --tokenizer DIR");
  const std::string text = ReadWholeFile(options.file);
  const std::vector<int32_t> ids = tokenizer->Encode(text, {});
  const std::shared_ptr<Backend> backend = Open(options.device);
  Write(options, text, files, CalibrateScales(calibration, backend, options.model.model, ids));
  return kDone;
}

}  // namespace

CommandBody AddCalibrate(CLI::App& command) {
  command.description("Smoothing factors of a model from a text, for --smooth");
  command.footer(
      "Examples:\n"
      "  stoch calibrate smoothquant --model demo --file text --alpha 0.5 -o smooth.safetensors\n"
      "  stoch calibrate awq --model demo --file text --bits 4 -o awq.safetensors");
  auto options = std::make_shared<Options>();
  command.add_option("kind", options->kind, "smoothquant or awq")->required();
  AddModelOptions(command, &options->model)->required();
  command.add_option("--file", options->file, "The text; - is standard input")->required();
  command.add_option("-o,--output", options->out, "The file to write (safetensors)")->required();
  ScaleCalibration& calibration = options->calibration;
  command.add_option("--alpha", calibration.alpha, "smoothquant: 0 is all on weights, 1 all on activations")
      ->capture_default_str();
  command.add_flag("--share", calibration.share, "smoothquant: one factor for all linears of an input");
  command.add_option("--bits", calibration.bits, "awq: bits of a weight")->capture_default_str();
  command.add_option("--ctx", calibration.ctx, "Tokens of a window")->capture_default_str();
  command.add_option("--max-windows", calibration.windows, "Windows of the text")->capture_default_str();
  AddDeviceOptions(command, &options->device);
  return [options] { return Run(*options); };
}

}  // namespace stoch::cli
