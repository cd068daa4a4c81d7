// SPDX-License-Identifier: Apache-2.0
#include "research/energy/energy.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/quote.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

constexpr const char* kByLength = "sc_mac_by_stoc_len";
constexpr size_t kMaxJsonBytes = size_t{64} << 20;
constexpr size_t kMostUnknown = 16;

bool IsAction(const std::string& name) {
  for (const char* known : {"sc_mac_cycle", "sc_mac", kByLength, "fp8_mac", "mxint8_mac", "fp_mac", "sng_bit",
                            "counter_bit", "sram_read_byte", "dram_read_byte"}) {
    if (name == known) return true;
  }
  return name.size() == 9 && name.starts_with("int_mac_") && name[8] >= '2' && name[8] <= '8';
}

[[noreturn]] void Reject(const std::string& name, const std::string& key, const Json& value,
                         const std::string& allowed) {
  const std::string text = value.is_structured() ? std::string(JsonTypeName(value)) : JsonText(value);
  throw InvalidInput(name + ": " + key + " = " + Quoted(text) + ": allowed is " + allowed);
}

double Energy(const std::string& name, const std::string& key, const Json& value) {
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0) {
    Reject(name, key, value, "a number of pJ, 0 or more");
  }
  return value.get<double>();
}

void RequireSource(const EnergyTable& table, const std::string& key, const Json& entry) {
  const auto source = entry.find("source");
  const bool cited = source != entry.end() && source->is_string() &&
                     source->get<std::string>().find_first_not_of(" \t\n") != std::string::npos;
  if (!cited) throw InvalidInput(table.name + ": " + key + " has no source: a citation is required");
}

double CitedEnergy(const EnergyTable& table, const std::string& key, const Json& entry) {
  if (!entry.is_object()) Reject(table.name, key, entry, "{energy, source}");
  RequireSource(table, key, entry);
  const auto energy = entry.find("energy");
  if (energy == entry.end()) throw InvalidInput(table.name + ": " + key + " has no energy");
  return Energy(table.name, key + ".energy", *energy);
}

// {"128": x, ..., source}, {energy: {"128": x, ...}, source} or {"128": {energy, source}, ...}.
void ReadLengths(const std::string& key, const Json& entry, EnergyTable* table) {
  if (!entry.is_object()) Reject(table->name, key, entry, "{length: pJ, source}");
  const Json& lengths = entry.contains("energy") ? entry["energy"] : entry;
  if (!lengths.is_object()) Reject(table->name, key + ".energy", lengths, "{length: pJ}");
  bool any = false;
  for (const auto& [length, value] : lengths.items()) {
    if (length == "source") continue;
    const bool digits = !length.empty() && length.size() <= 5 && length[0] != '0' &&
                        std::all_of(length.begin(), length.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) throw InvalidInput(table->name + ": " + key + ": " + Quoted(length) + " is no stream length");
    if (!value.is_object()) RequireSource(*table, key, entry);
    table->actions[std::string(kByLength) + '.' + length] = value.is_object()
                                                                ? CitedEnergy(*table, key + '.' + length, value)
                                                                : Energy(table->name, key + '.' + length, value);
    any = true;
  }
  if (!any) throw InvalidInput(table->name + ": " + key + " has no lengths");
}

void ReadAction(const std::string& action, const Json& entry, EnergyTable* table) {
  const std::string key = "actions." + action;
  if (action == kByLength) {
    ReadLengths(key, entry, table);
  } else {
    table->actions[action] = CitedEnergy(*table, key, entry);
  }
}

// Adds to the entry of a name, in the order of first use.
void AddTo(std::vector<std::pair<std::string, double>>* list, const std::string& name, double value) {
  const auto found = std::find_if(list->begin(), list->end(), [&](const auto& entry) { return entry.first == name; });
  if (found == list->end()) {
    list->emplace_back(name, value);
  } else {
    found->second += value;
  }
}

}  // namespace

EnergyTable ParseEnergyTable(std::string_view text, const std::string& name) {
  if (text.size() > kMaxJsonBytes) throw InvalidInput(name + ": has more than 64 MiB");
  const Json root = ParseBoundedJson(text, name);
  if (!root.is_object()) Reject(name, "the file", root, "an object");
  EnergyTable table;
  table.name = name;
  for (const auto& [key, value] : root.items()) {
    if (key == "schema") {
      if (value != "stoch-energy-v1") Reject(name, key, value, "stoch-energy-v1");
    } else if (key == "unit") {
      if (value != "pJ") Reject(name, key, value, "pJ");
    } else if (key == "process") {
      if (!value.is_string()) Reject(name, key, value, "text");
      table.process = value.get<std::string>();
    } else if (key != "actions" && table.unknown_keys.size() < kMostUnknown) {
      table.unknown_keys.push_back(Quoted(key));
    }
  }
  for (const char* key : {"schema", "unit", "actions"}) {
    if (!root.contains(key)) throw InvalidInput(name + ": has no " + key);
  }
  if (!root["actions"].is_object()) Reject(name, "actions", root["actions"], "an object");
  for (const auto& [action, entry] : root["actions"].items()) {
    if (IsAction(action)) {
      ReadAction(action, entry, &table);
    } else if (table.unknown_keys.size() < kMostUnknown) {
      table.unknown_keys.push_back("actions." + Quoted(action));
    }
  }
  return table;
}

ActionCounts CountActions(const OperatorCost& op, bool with_array) {
  ActionCounts counts;
  const auto add = [&](const std::string& action, Int128 count) {
    if (count > 0) counts.emplace_back(action, count);
  };
  Int128 macs = 0;
  for (const auto& [length, count] : op.macs_by_len) macs += length > 0 ? count : 0;
  add("sc_mac_cycle", op.mac_cycles);
  add("sc_mac", macs);
  for (auto at = op.macs_by_len.rbegin(); at != op.macs_by_len.rend(); ++at) {
    if (at->first > 0) add(std::string(kByLength) + '.' + std::to_string(at->first), at->second);
  }
  for (const auto& [bits, count] : op.macs.integers) add("int_mac_" + std::to_string(bits), count);
  add("fp8_mac", op.macs.fp8);
  add("mxint8_mac", op.macs.mxint8);
  add("fp_mac", op.macs.fp);
  if (with_array) add("sng_bit", op.array.sng_bits);
  add("counter_bit", op.mac_cycles);
  if (with_array) add("sram_read_byte", op.array.sram_read_bytes);
  add("dram_read_byte", op.array.dram_read_bytes);
  add("table_mac", op.macs.table);  // which no schema prices
  return counts;
}

namespace {

// The three ways in which a table may price a mac in streams.
bool PricesStreams(const EnergyTable& table, const std::string& but) {
  return std::any_of(table.actions.begin(), table.actions.end(), [&](const auto& entry) {
    return entry.first != but && entry.first.starts_with("sc_mac") &&
           (!entry.first.starts_with(kByLength) || !but.starts_with(kByLength));
  });
}

}  // namespace

EnergyReport PriceCost(const ScCost& cost, const EnergyTable& table) {
  // Every action once, in the order of the schema.
  OperatorCost all;
  for (const OperatorCost& op : cost.operators) {
    for (const auto& [length, count] : op.macs_by_len) all.macs_by_len[length] += count;
    all.mac_cycles += op.mac_cycles;
    all.macs += op.macs;
    all.array += op.array;
  }
  EnergyReport report;
  for (const auto& [action, count] : CountActions(all, cost.array_shape.has_value())) {
    const auto price = table.actions.find(action);
    if (price == table.actions.end()) {
      const bool alternative = action.starts_with("sc_mac") && PricesStreams(table, action);
      if (!alternative) report.unpriced.push_back(action);
      continue;
    }
    const double energy = static_cast<double>(count) * price->second;
    report.total += energy;
    report.by_action.emplace_back(action, energy);
  }
  for (const OperatorCost& op : cost.operators) {
    double energy = 0;
    for (const auto& [action, count] : CountActions(op, cost.array_shape.has_value())) {
      const auto price = table.actions.find(action);
      if (price != table.actions.end()) energy += static_cast<double>(count) * price->second;
    }
    AddTo(&report.by_operator, op.op, energy);
    AddTo(&report.by_layer, op.layer < 0 ? "-" : std::to_string(op.layer), energy);
  }
  for (const char* action : {"sng_bit", "sram_read_byte"}) {
    if (!cost.array_shape && table.actions.count(action) != 0) report.uncounted.emplace_back(action);
  }
  return report;
}

nlohmann::ordered_json EnergyJson(const EnergyReport& report, const EnergyTable& table) {
  const auto object = [](const std::vector<std::pair<std::string, double>>& list) {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    for (const auto& [name, value] : list) json[name] = value;
    return json;
  };
  return {{"unit", "pJ"},
          {"process", table.process},
          {"total", report.total},
          {"by_action", object(report.by_action)},
          {"by_operator", object(report.by_operator)},
          {"by_layer", object(report.by_layer)},
          {"unpriced", report.unpriced},
          {"uncounted", report.uncounted}};
}

}  // namespace stoch
