// SPDX-License-Identifier: Apache-2.0
// Time, power and area of an array from its cycles and cited constants: there are no others (docs/hardware.md#time-power-area).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "research/cost.h"
#include "research/energy/energy.h"
#include "research/trace_reader.h"

namespace stoch {

// stoch-hw-v1.
struct HardwareFile {
  std::string name;  // for messages
  double clock_mhz = 0;
  std::optional<double> area_um2;  // sum of um2 * count, in the order of names
  std::optional<double> leakage_mw;
  std::string energy;  // a path, as written; "": none
  std::vector<std::string> unknown_keys;
};

// {schema, clock_mhz, [area{COMPONENT: {um2, count, source}}], [energy], [leakage_mw, source]}.
// Errors: InvalidInput, one sentence with name, key, value and what is allowed: a component or a leakage without a source.
HardwareFile ParseHardwareFile(std::string_view text, const std::string& name);

// What an array did. Absent: not given, or not known.
struct HardwareCounts {
  Int128 cycles = 0;
  Int128 mac_cycles = 0;
  Int128 macs = 0;
  ArrayShape array;
  std::optional<Int128> tokens;
  std::optional<double> energy_pj;
};

// All in double. Absent where something that it is made of is.
struct HardwareFigures {
  double seconds = 0;      // cycles / (clock_mhz * 1e6)
  double utilisation = 0;  // mac_cycles / (cycles * R * C * K)
  double tops = 0;         // 2 * macs / seconds / 1e12
  std::optional<double> tokens_per_s;
  std::optional<double> joules;  // energy_pj * 1e-12 + leakage_mw * 1e-3 * seconds
  std::optional<double> joules_per_token, watts, tops_per_watt, edp_js;
  std::optional<double> mm2, tops_per_mm2;
};
// Requires: cycles above 0.
HardwareFigures FiguresOf(const HardwareCounts& counts, const HardwareFile& file);

// Positions that a trace's products went through; prompt and generated tokens where it has a record for every call.
struct TracePositions {
  std::optional<Int128> all, prompt, generated;
};
TracePositions PositionsOf(const TraceFile& trace);

struct HardwareColumn {
  std::string name;  // "sc", "int8", "sc, prompt", "sc, generated"
  HardwareCounts counts;
  HardwareFigures figures;
};
struct HardwareReport {
  std::vector<HardwareColumn> columns;  // what ran; the same array in integers; prompt and generated tokens apart
  std::vector<std::string> notes;       // what is not counted, and what is not there and why
};

// `cost` has an array. prices: of EnergyTable, or null. The second column is the same array with every SC product in
// 8-bit integers at one cycle a mac, priced by int_mac_8.
// Errors: InvalidInput without an array or without a cycle.
HardwareReport ReportHardware(const TraceFile& trace, const ScCost& cost, const HardwareFile& file,
                              const EnergyTable* prices);

nlohmann::ordered_json HardwareJson(const HardwareReport& report);
// layer,op,unit,cycles,seconds and the joules of each priced action.
std::string HardwareCsv(const ScCost& cost, const HardwareFile& file, const EnergyTable* prices);

}  // namespace stoch
