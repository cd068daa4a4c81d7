// SPDX-License-Identifier: Apache-2.0
// Any bytes are either refused with one sentence, or read as a trace, an energy table or Accelergy's ERT, whose sums are
// finite.

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "research/energy/accelergy_ert.h"
#include "research/energy/cost_export.h"
#include "research/energy/energy.h"
#include "research/trace_reader.h"
#include "tests/fuzz/try.h"

using stoch::test::Check;
using stoch::test::Try;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  stoch::EnergyTable table;
  table.actions["sc_mac_cycle"] = 1.5;
  Try([&] {
    table = stoch::ParseEnergyTable(text, "fuzz");
    for (const auto& [action, energy] : table.actions) Check(std::isfinite(energy) && energy >= 0);
  });
  Try([&] {
    for (const auto& [action, energy] : stoch::ParseAccelergyErt(text, "fuzz").actions) {
      Check(std::isfinite(energy) && energy >= 0);
    }
  });
  Try([&] {
    const stoch::TraceFile trace = stoch::ParseTraceFile(text, "fuzz");
    Check(trace.groups.size() == trace.batches.size() && trace.groups.size() == trace.chunk_d.size());
    Check(!trace.cost.ToJson(true).dump().empty());
    Check(stoch::PriceCost(trace.cost, table).total >= 0);
    Check(!stoch::AccelergyActionCounts(trace.cost).empty() && !stoch::UsystolicNetwork(trace.groups).empty());
    Try([&] { Check(stoch::CountArray(trace, {64, 64, 64, 1}).array().cycles >= 0); });
  });
  return 0;
}
