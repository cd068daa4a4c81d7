// SPDX-License-Identifier: Apache-2.0
#include "research/energy/cost_export.h"

#include <utility>
#include <vector>

#include "research/energy/energy.h"

namespace stoch {
namespace {

// A name that neither YAML nor CSV reads as anything else.
std::string PlainName(const std::string& name) {
  std::string plain;
  for (const char c : name) {
    const bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    plain += good ? c : '_';
  }
  return plain;
}

}  // namespace

std::string AccelergyComponent(const std::string& action) {
  if (action == "sng_bit") return "sng";
  if (action == "sram_read_byte") return "sram";
  if (action == "dram_read_byte") return "dram";
  if (action == "fp_mac") return "fp_mac_array";
  if (action == "fp8_mac") return "fp8_mac_array";
  if (action == "mxint8_mac") return "mxint8_mac_array";
  if (action == "table_mac") return "table_mac_array";
  if (action.starts_with("int_mac_")) return "int_mac_array";
  return action.starts_with("sc_mac") || action == "counter_bit" ? "sc_mac_array" : "";
}

std::string AccelergyActionCounts(const ScCost& cost) {
  OperatorCost all;
  for (const OperatorCost& op : cost.operators) {
    all.macs += op.macs;
    all.mac_cycles += op.mac_cycles;
    all.array += op.array;
    for (const auto& [length, count] : op.macs_by_len) all.macs_by_len[length] += count;
  }
  const ActionCounts counts = CountActions(all, cost.array_shape.has_value());
  std::string text = "action_counts:\n  version: 0.3\n  local:\n";
  for (const char* component : {"sc_mac_array", "int_mac_array", "fp8_mac_array", "mxint8_mac_array", "fp_mac_array",
                                "table_mac_array", "sng", "sram", "dram"}) {
    std::string actions;
    for (const auto& [action, count] : counts) {
      if (AccelergyComponent(action) != component) continue;
      actions += "        - name: " + PlainName(action) + "\n          counts: " + ToText(count) + '\n';
    }
    if (actions.empty()) continue;
    text += std::string("    - name: ") + component + "\n      action_counts:\n" + actions;
  }
  return text;
}

std::string UsystolicNetwork(std::span<const TraceGroup> groups) {
  std::string text =
      "Layer name, Layer Type, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Stride H, "
      "Stride W, MAC Cycles,\n";
  for (size_t i = 0; i < groups.size(); ++i) {
    const TraceGroup& group = groups[i];
    std::string name = (group.block < 0 ? "" : "b" + std::to_string(group.block) + '_') + PlainName(group.op);
    if (group.unit) name += "_u" + std::to_string(*group.unit);
    name += "_L" + std::to_string(group.stoc_len) + '_' + std::to_string(i);
    const std::vector<DenseProduct> gemms = DenseProductsOf(group);
    for (size_t part = 0; part < gemms.size(); ++part) {
      const auto& [rows, d_in, d_out] = gemms[part];
      text += name + (part == 0 ? "" : "_" + std::to_string(part)) + ", GEMM, " + ToText(rows) + ", " + ToText(d_in) +
              ", 1, " + ToText(d_in) + ", 1, " + ToText(d_out) + ", 1, 1, " + std::to_string(group.stoc_len) + ",\n";
    }
  }
  return text;
}

}  // namespace stoch
