// SPDX-License-Identifier: Apache-2.0
// stoch cost: lengths, cycles and energy of a trace, and the trace for other tools.

#include "app/report/cost.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>

#include "app/common_options.h"
#include "app/options/cost_options.h"
#include "app/options/value_rules.h"
#include "app/output.h"
#include "kernels/base/error.h"
#include "loader/file.h"
#include "loader/json_text.h"
#include "research/energy/accelergy_ert.h"
#include "research/energy/cost_export.h"
#include "research/energy/energy.h"
#include "research/energy/hardware_report.h"
#include "research/trace_reader.h"
#include "tools/stoch/commands.h"

namespace stoch::cli {
namespace {

constexpr int64_t kMaxTraceBytes = int64_t{2} << 30;

struct Options {
  std::string trace, energy, array, accelergy, usystolic, hardware, csv;
  std::vector<int64_t> tile_rows;
  DeviceOptions device;  // a trace is priced on the host
  OutputOptions output;
};

void Write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw InvalidInput(path.string() + ": cannot be written");
}

// DIR/ERT.yaml, where Accelergy left one.
std::optional<EnergyTable> ReadErt(const std::string& folder) {
  if (folder.empty()) return std::nullopt;
  const std::filesystem::path path = std::filesystem::path(folder) / "ERT.yaml";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  constexpr int64_t kMaxBytes = int64_t{64} << 20;
  return ParseAccelergyErt(ReadSmallFile(path.string(), kMaxBytes), path.string());
}

// Averages of tiles are in the traces that were written with them.
void KeepTiles(const TraceFile& trace, const std::vector<int64_t>& wanted, ScCost* cost) {
  if (wanted.empty()) return;
  std::vector<std::pair<int64_t, double>> kept;
  for (const int64_t rows : wanted) {
    const auto found = std::find_if(cost->tile_averages.begin(), cost->tile_averages.end(),
                                    [&](const auto& entry) { return entry.first == rows; });
    if (found == cost->tile_averages.end()) {
      throw InvalidInput(
          fmt::format("--tile-rows {}: {} does not have that average: give --tile-rows to the command "
                      "that writes the trace",
                      rows, trace.name));
    }
    kept.push_back(*found);
  }
  cost->tile_averages = kept;
}

// --hw: the file, and the energies that it names (relative to it) unless --energy does.
std::optional<HardwareFile> ReadHardware(const Options& options, std::optional<EnergyTable>* energy) {
  if (options.hardware.empty()) {
    if (!options.csv.empty()) throw InvalidInput("--csv: is of --hw, which is not given");
    return std::nullopt;
  }
  constexpr int64_t kMaxBytes = int64_t{64} << 20;
  HardwareFile file = ParseHardwareFile(ReadSmallFile(options.hardware, kMaxBytes), options.hardware);
  for (const std::string& key : file.unknown_keys) spdlog::warn("{}: {} is not known and ignored", file.name, key);
  if (!file.energy.empty() && *energy) throw InvalidInput("--energy: " + file.name + " names another: give one");
  if (!file.energy.empty()) {
    *energy = ReadEnergy((std::filesystem::path(options.hardware).parent_path() / file.energy).string());
  }
  return file;
}

ExitCode Run(const Options& options) {
  std::optional<EnergyTable> energy;
  if (!options.energy.empty()) energy = ReadEnergy(options.energy);
  const std::optional<HardwareFile> hardware = ReadHardware(options, &energy);
  const std::optional<EnergyTable> ert = ReadErt(options.accelergy);
  const TraceFile trace = ParseTraceFile(ReadSmallFile(options.trace, kMaxTraceBytes), options.trace);
  ScCost cost = trace.cost;
  if (!options.array.empty()) {
    const ArrayShape array = ParseArrayShape(options.array);
    const bool counted = cost.array_shape && *cost.array_shape == array;
    if (!counted) cost = CountArray(trace, array);
  }
  KeepTiles(trace, options.tile_rows, &cost);
  if (!options.accelergy.empty()) {
    std::error_code ignored;
    std::filesystem::create_directories(options.accelergy, ignored);
    Write(std::filesystem::path(options.accelergy) / "action_counts.yaml", AccelergyActionCounts(cost));
  }
  if (!options.usystolic.empty()) Write(options.usystolic, UsystolicNetwork(trace.groups));
  std::optional<EnergyReport> priced;
  if (energy) priced = PriceCost(cost, *energy);
  std::optional<EnergyReport> by_accelergy;
  if (ert) by_accelergy = PriceCost(cost, *ert);
  std::optional<HardwareReport> report;
  const EnergyTable* prices = energy ? &*energy : nullptr;
  if (hardware) report = ReportHardware(trace, cost, *hardware, prices);
  if (!options.csv.empty()) Write(options.csv, HardwareCsv(cost, *hardware, prices));
  if (options.output.json) {
    nlohmann::ordered_json json = {{"trace", options.trace}, {"schema", trace.schema}};
    if (trace.is_ours) json["sc"] = trace.config;
    json["sc_cost"] = cost.ToJson(true);
    if (priced) json["energy"] = EnergyJson(*priced, *energy);
    if (report) json["hw"] = HardwareJson(*report);
    if (by_accelergy) json["accelergy_energy"] = EnergyJson(*by_accelergy, *ert);
    PrintLine(JsonText(json));
    return kDone;
  }
  Print(CostText(cost));
  if (priced) Print(EnergyText(*priced));
  if (report) Print(HardwareText(*report));
  if (by_accelergy) Print("by " + ert->name + ": " + EnergyText(*by_accelergy));
  return kDone;
}

}  // namespace

CommandBody AddCost(CLI::App& command) {
  command.description("Stream lengths, cycles and energy of a trace; the trace for other tools");
  command.footer(
      "Examples:\n"
      "  stoch perplexity --model demo --file text --trace trace.json --array 32,32,64\n"
      "  stoch cost trace.json --energy table.json\n"
      "  stoch cost trace.json --hw hw.json --csv operators.csv\n"
      "  stoch cost trace.json --accelergy DIR --usystolic network.csv");
  auto options = std::make_shared<Options>();
  command.add_option("trace", options->trace, "A file of --trace, or of the published package")->required();
  command.add_option("--energy", options->energy, "pJ of each action, each with its source (stoch-energy-v1)");
  command.add_option("--hw", options->hardware,
                     "Clock, area and leakage, each with its source (stoch-hw-v1): seconds, watts");
  command.add_option("--csv", options->csv, "Write cycles and joules of every operator of --hw to this file");
  KeepInputs(command, "--csv");
  command.add_option("--array", options->array, "R,C,K[,FILL]: cycles of an array, where the trace tells all rows");
  command.add_option("--tile-rows", options->tile_rows, "Only these averages of tiles")->delimiter(',');
  command.add_option("--accelergy", options->accelergy,
                     "Write action_counts.yaml into this folder; its ERT.yaml, where Accelergy left one, prices them");
  command.add_option("--usystolic", options->usystolic, "Write the products as network.csv to this file");
  AddDeviceOptions(command, &options->device);
  AddOutputOptions(command, &options->output);
  return [options] { return Run(*options); };
}

}  // namespace stoch::cli
