// SPDX-License-Identifier: Apache-2.0
// Energy from a table of cited constants: there are no others (docs/research.md#energy).
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "research/cost.h"

namespace stoch {

// stoch-energy-v1. Units: pJ for one action.
struct EnergyTable {
  std::string name;  // for messages
  std::string process;
  std::map<std::string, double> actions;  // "sc_mac_cycle", "sc_mac_by_stoc_len.128", ...
  std::vector<std::string> unknown_keys;
};

// {schema, unit, process, actions{ACTION: {energy, source}}}; sc_mac_by_stoc_len is {"128": x, ..., source}.
// Errors: InvalidInput, one sentence with name, key, value and what is allowed: an action without a source, energies
//         below 0 or not finite, another schema or unit.
EnergyTable ParseEnergyTable(std::string_view text, const std::string& name);

// What one operator of a layer did, in the order of actions of the schema.
using ActionCounts = std::vector<std::pair<std::string, Int128>>;
ActionCounts CountActions(const OperatorCost& op, bool with_array);

struct EnergyReport {
  double total = 0;  // pJ: sum of count * energy in double, in the order of actions
  std::vector<std::pair<std::string, double>> by_action, by_operator, by_layer;
  std::vector<std::string> unpriced;   // counted actions without a price, nor one of what they are an alternative to
  std::vector<std::string> uncounted;  // priced actions that nothing counted, since no array is given
};
EnergyReport PriceCost(const ScCost& cost, const EnergyTable& table);

// {unit, process, total, by_action, by_operator, by_layer, unpriced, uncounted}.
nlohmann::ordered_json EnergyJson(const EnergyReport& report, const EnergyTable& table);

}  // namespace stoch
