// SPDX-License-Identifier: Apache-2.0
// stoch vectors: one operator of one window as test vectors for RTL.

#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>

#include "app/common_options.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/version.h"
#include "kernels/base/error.h"
#include "research/vectors/vector_operands.h"
#include "tools/stoch/commands.h"

namespace stoch::cli {
namespace {

struct Options {
  ModelOptions model;
  DeviceOptions device;
  OutputOptions output;
  ArithmeticOptions arithmetic;
  std::string file, op, rows = "0", outputs = "0", folder;
  VectorChoice choice;
};

// "3" or "0-7".
void ParseRange(const std::string& name, const std::string& text, int64_t* first, int64_t* last) {
  const char* const end = text.data() + text.size();
  auto parsed = std::from_chars(text.data(), end, *first);
  *last = *first;
  if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '-') {
    parsed = std::from_chars(parsed.ptr + 1, end, *last);
  }
  if (parsed.ec == std::errc() && parsed.ptr == end) return;
  throw InvalidInput(name + " '" + text + "': allowed is a number, or a range as 0-7");
}

// So that a folder that cannot be made costs no time. Makes nothing: what is refused later leaves no folder.
void CheckFolder(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::path there = std::filesystem::absolute(folder, ignored);
  while (!std::filesystem::exists(there, ignored) && there.has_relative_path()) there = there.parent_path();
  if (std::filesystem::is_directory(there, ignored)) return;
  throw InvalidInput("-o " + folder + ": allowed is a folder, and " + there.string() + " is none");
}

void WriteFiles(const std::map<std::string, std::string>& files, const std::string& folder) {
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  for (const auto& [name, text] : files) {
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << text;
    file.close();
    if (!file) throw InvalidInput(path.string() + ": cannot be written");
  }
}

ExitCode Run(const CLI::App& command, const Options& given) {
  Options options = given;
  VectorChoice& choice = options.choice;
  ParseVectorOperator(options.op, &choice);
  if (command.get_option("--head")->count() > 0 && choice.op != ScOperatorId::kQk && choice.op != ScOperatorId::kAv) {
    throw InvalidInput("--head: has no meaning with --op " + options.op + ": allowed with qk and av");
  }
  CheckFolder(options.folder);
  ParseRange("--rows", options.rows, &choice.first_row, &choice.last_row);
  ParseRange("--outputs", options.outputs, &choice.first_output, &choice.last_output);
  EngineOptions engine;
  Apply(options.arithmetic, &engine);
  if (engine.precision != Precision::kSc) {
    throw InvalidInput("vectors: has no meaning with --precision " + options.arithmetic.precision);
  }
  if (choice.ctx < 3) throw InvalidInput("--ctx: allowed are at least 3");
  engine.context = choice.ctx;
  constexpr int64_t kMostRows = 2048;
  engine.max_pass_rows = std::min(choice.ctx, kMostRows);
  const ModelFiles files = OpenModelFiles(options.model.model);
  const std::unique_ptr<Tokenizer> tokenizer = OpenTokenizer(options.model, files);
  if (tokenizer == nullptr) throw InvalidInput(files.name + ": has no tokenizer; give --tokenizer DIR");
  const std::vector<int32_t> ids = tokenizer->Encode(ReadTextFile(options.file), {});
  CheckVectors(engine.sc, files.config, ids.size(), choice);
  const std::shared_ptr<Backend> backend = Open(options.device);
  const std::unique_ptr<Engine> opened =
      OpenEngine(backend, OpenModelFiles(options.model.model), engine, options.device, options.output);
  const VectorOperands operands = CaptureVectors(*opened, files, ids, choice);
  ThrowIfInterrupted();
  const std::map<std::string, std::string> vectors = VectorFiles(operands, VersionLine());
  WriteFiles(vectors, options.folder);
  if (options.output.json) {
    Print(vectors.at("meta.json"));
  } else if (!options.output.quiet) {
    PrintLine(operands.name + ": " + std::to_string(operands.rows.size()) + " rows, " +
              std::to_string(operands.outputs.size()) + " outputs, " + std::to_string(operands.dims) +
              " dimensions, in " + options.folder);
  }
  return kDone;
}

}  // namespace

CommandBody AddVectors(CLI::App& command) {
  command.description("Numbers, codes, bits and sums of one operator, for a Verilog bench");
  command.footer(
      "Examples:\n"
      "  stoch vectors --model demo --file text --op 0.q_proj --rows 0-3 --outputs 0-7 -o vectors\n"
      "  examples/rtl/run vectors\n"
      "  stoch vectors --model demo --file text --sc stoc_len=96 --op 1.av --head 2 --rows 40 --outputs 0-7 -o av");
  auto options = std::make_shared<Options>();
  AddModelOptions(command, &options->model)->required();
  command.remove_option(command.get_option("--context"));
  command.add_option("--file", options->file, "The text; - is standard input")->required();
  command.add_option("--op", options->op, "LAYER.OPERATOR: a linear, qk or av")->required();
  command.add_option("--head", options->choice.head, "Query head of qk and av")->capture_default_str();
  command.add_option("--rows", options->rows, "Positions of the window, as 0-3")->capture_default_str();
  command.add_option("--outputs", options->outputs, "Output features, keys of qk, channels of av, as 0-7")
      ->capture_default_str();
  command.add_option("--sequence", options->choice.window, "Index of the window, whose faults are drawn")
      ->capture_default_str();
  command.add_option("--ctx", options->choice.ctx, "Tokens of a window")->capture_default_str();
  command.add_option("-o", options->folder, "Folder of the files")->required();
  AddArithmeticOptions(command, &options->arithmetic);
  AddDeviceOptions(command, &options->device);
  AddOutputOptions(command, &options->output);
  return [options, &command] { return Run(command, *options); };
}

}  // namespace stoch::cli
