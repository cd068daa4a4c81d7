// SPDX-License-Identifier: Apache-2.0
#include "app/options/cost_options.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "app/options/value_rules.h"
#include "engine/digest_cache.h"
#include "kernels/base/error.h"
#include "kernels/base/usable_threads.h"
#include "loader/file.h"
#include "loader/sha256.h"

namespace stoch::cli {

void AddCostOptions(CLI::App& command, CostFlags* flags) {
  command.add_option("--array", flags->array,
                     "R,C,K[,FILL]: count cycles of an array of R x C multipliers that take K dimensions at once");
  command
      .add_option("--tile-rows", flags->tile_rows,
                  "Rows that run at the longest length among them, for averages; several with commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  command.add_option("--energy", flags->energy, "pJ of each action, each with its source (JSON, stoch-energy-v1)");
  auto* trace =
      command.add_option("--trace", flags->trace, "Write the products in SC to this file (scmp-trace schemas)");
  command
      .add_option("--trace-mode", flags->trace_mode, "summary: groups, JSON; trace: a line for every product of a call")
      ->capture_default_str()
      ->check(CLI::IsMember({"summary", "trace"}))
      ->needs(trace);
  KeepInputs(command, "--trace");
}

CostOptions ParseCostOptions(const CostFlags& flags, bool any_sc) {
  constexpr int64_t kMostRows = 1 << 20;
  CostOptions options;
  options.tile_rows = flags.tile_rows;
  for (const int64_t rows : flags.tile_rows) {
    if (rows < 1 || rows > kMostRows) {
      throw InvalidInput(fmt::format("--tile-rows {}: allowed is 1..{}", rows, kMostRows));
    }
  }
  if (!flags.trace.empty() && !any_sc) throw InvalidInput("--trace: has no meaning without a run in SC");
  if (flags.array.empty()) return options;
  if (!any_sc) throw InvalidInput("--array: has no meaning without a run in SC");
  options.array = ParseArrayShape(flags.array);
  return options;
}

EnergyTable ReadEnergy(const std::string& path) {
  constexpr int64_t kMaxBytes = int64_t{64} << 20;
  EnergyTable table = ParseEnergyTable(ReadSmallFile(path, kMaxBytes), path);
  if (!table.unknown_keys.empty()) {
    spdlog::warn("{}: keys that are not known and have no effect: {}", path, fmt::join(table.unknown_keys, ", "));
  }
  return table;
}

std::optional<EnergyTable> ReadEnergy(const CostFlags& flags, bool any_sc) {
  if (flags.energy.empty()) return std::nullopt;
  if (!any_sc) throw InvalidInput("--energy: has no meaning without a run in SC");
  return ReadEnergy(flags.energy);
}

std::unique_ptr<TraceWriter> OpenTrace(const CostFlags& flags, size_t runs) {
  if (flags.trace.empty()) return nullptr;
  if (runs > 1) throw InvalidInput(fmt::format("--trace: records one configuration, got {}", runs));
  return std::make_unique<TraceWriter>(flags.trace,
                                       flags.trace_mode == "trace" ? TraceMode::kTrace : TraceMode::kSummary);
}

std::unique_ptr<ScCostCollector> CollectCost(Engine& engine, const CostOptions& options, TraceWriter* trace) {
  if (engine.options().precision != Precision::kSc) return nullptr;
  return std::make_unique<ScCostCollector>(engine, options, trace == nullptr ? nullptr : trace->sink());
}

void FinishTrace(TraceWriter* trace, const ScCostCollector& collector, const Engine& engine, const ModelFiles& files,
                 const std::string& text, const std::string& version) {
  if (trace == nullptr) return;
  const int threads = UsableThreads();
  TraceOrigin origin;
  origin.version = version;
  origin.config = engine.sc_description();
  origin.model_sha256 = FindDigest(files, threads, false, [] { return false; });
  origin.text_sha256 = Sha256Hex(text);
  origin.common = Resolve(engine.options().sc.at(ScOperatorId::kQProj));
  trace->Finish(collector, origin);
}

}  // namespace stoch::cli
