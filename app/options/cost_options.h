// SPDX-License-Identifier: Apache-2.0
// --array, --tile-rows, --energy and --trace of the commands that report sc_cost.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "research/cost.h"
#include "research/energy/energy.h"
#include "research/trace_writer.h"

namespace CLI {
class App;
}

namespace stoch::cli {

struct CostFlags {
  std::string array;  // "": none
  std::vector<int64_t> tile_rows = CostOptions{}.tile_rows;
  std::string energy;  // "": none
  std::string trace;   // "": none
  std::string trace_mode = "summary";
};
void AddCostOptions(CLI::App& command, CostFlags* flags);

// Errors: InvalidInput, also where no run is in SC and something is asked for.
CostOptions ParseCostOptions(const CostFlags& flags, bool any_sc);

// A table of --energy; keys that are not known go to the log. Errors: InvalidInput.
EnergyTable ReadEnergy(const std::string& path);
// That of the flags, absent without --energy.
std::optional<EnergyTable> ReadEnergy(const CostFlags& flags, bool any_sc);

// What --trace writes of one run; null without it. Errors: InvalidInput if the file cannot be created, or for several
// runs.
std::unique_ptr<TraceWriter> OpenTrace(const CostFlags& flags, size_t runs);

// A collector for engines in SC, else null. `trace` may be null.
std::unique_ptr<ScCostCollector> CollectCost(Engine& engine, const CostOptions& options, TraceWriter* trace);

// Writes the trace of a run over `text`, where there is one. Hashes all weights, unless their digest is kept (engine/digest_cache.h).
void FinishTrace(TraceWriter* trace, const ScCostCollector& collector, const Engine& engine, const ModelFiles& files,
                 const std::string& text, const std::string& version);

}  // namespace stoch::cli
