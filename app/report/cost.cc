// SPDX-License-Identifier: Apache-2.0
#include "app/report/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "app/report/table.h"

namespace stoch::cli {
namespace {

// The operators in the order of a layer, each once.
std::vector<std::string> Names(const ScCost& cost) {
  std::vector<std::string> names;
  for (const OperatorCost& op : cost.operators) {
    if (std::find(names.begin(), names.end(), op.op) == names.end()) names.push_back(op.op);
  }
  return names;
}

std::string SharesText(const MacCounts& macs) {
  std::string text;
  const auto add = [&](Int128 part, const char* name) {
    if (part == 0) return;
    text += fmt::format("{}{:.2f} % {}", text.empty() ? "" : ", ", 100 * RatioOf(part, macs.all()), name);
  };
  add(macs.sc, "SC");
  add(macs.table, "table");
  add(macs.integer(), "int");
  add(macs.fp8, "fp8");
  add(macs.mxint8, "mxint8");
  add(macs.fp, "fp");
  return text;
}

}  // namespace

std::string LengthText(const std::optional<double>& average) { return average ? fmt::format("{:.2f}", *average) : "-"; }

std::string CostText(const ScCost& cost) {
  const MacCounts macs = cost.macs();
  std::string text = fmt::format("macs: {} ({})\n", ToText(macs.all()), SharesText(macs));
  if (macs.sc == 0) return text;
  if (!cost.lengths_known()) {
    return text + "average stream length: not known, since this device does not show the lengths of rows\n";
  }
  text += fmt::format("average stream length: {} (linears {}, attention {})\n", LengthText(cost.mac_average()),
                      LengthText(cost.linears_average()), LengthText(cost.attention_average()));
  std::vector<std::string> parts;
  const auto averages = cost.by_op();
  for (const std::string& name : Names(cost)) {
    if (averages.at(name)) parts.push_back(fmt::format("{} {}", name, LengthText(averages.at(name))));
  }
  text += fmt::format("  by operator: {}\n", fmt::join(parts, ", "));
  parts.clear();
  for (const auto& [rows, average] : cost.tile_averages) parts.push_back(fmt::format("{} rows {:.2f}", rows, average));
  text += fmt::format("  longest of a tile: {}\n", fmt::join(parts, ", "));
  if (cost.array_shape) {
    const ArrayShape& shape = *cost.array_shape;
    text += fmt::format("array {},{},{},{}: {} cycles\n", shape.rows, shape.cols, shape.depth, shape.fill,
                        ToText(cost.array().cycles));
  }
  text += fmt::format(
      "dram_read_bytes: {} (a byte for each code of weights, keys and values in SC, a call; not scales, activations, "
      "embeddings and exact operators)\n",
      ToText(cost.array().dram_read_bytes));
  return text;
}

std::string EnergyText(const EnergyReport& report) {
  std::vector<std::string> parts;
  for (const auto& [action, energy] : report.by_action) parts.push_back(fmt::format("{} {:.6g}", action, energy));
  std::string text = fmt::format("energy: {:.6g} pJ ({})\n", report.total, fmt::join(parts, ", "));
  parts.clear();
  for (const auto& [op, energy] : report.by_operator) parts.push_back(fmt::format("{} {:.6g}", op, energy));
  text += fmt::format("  by operator: {}\n", fmt::join(parts, ", "));
  parts.clear();
  for (const auto& [layer, energy] : report.by_layer) parts.push_back(fmt::format("{} {:.6g}", layer, energy));
  text += fmt::format("  by layer: {}\n", fmt::join(parts, ", "));
  if (!report.unpriced.empty()) text += fmt::format("  without a price: {}\n", fmt::join(report.unpriced, ", "));
  if (!report.uncounted.empty()) {
    text += fmt::format("  not counted without --array: {}\n", fmt::join(report.uncounted, ", "));
  }
  return text;
}

std::string HardwareText(const HardwareReport& report) {
  std::vector<std::string> head = {"hardware"};
  for (const HardwareColumn& column : report.columns) head.push_back(column.name);
  Table table(head);
  const auto add = [&](const std::string& name, const auto& value) {
    std::vector<std::string> cells = {name};
    bool any = false;
    for (const HardwareColumn& column : report.columns) {
      const std::optional<double> number = value(column.figures);
      cells.push_back(number ? fmt::format("{:.6g}", *number) : "");
      any = any || number;
    }
    if (any) table.Add(cells);
  };
  const auto figure = [](auto member) {
    return [member](const HardwareFigures& f) { return std::optional<double>(f.*member); };
  };
  add("seconds", figure(&HardwareFigures::seconds));
  add("utilisation", figure(&HardwareFigures::utilisation));
  add("TOPS", figure(&HardwareFigures::tops));
  add("tokens/s", figure(&HardwareFigures::tokens_per_s));
  add("J", figure(&HardwareFigures::joules));
  add("J/token", figure(&HardwareFigures::joules_per_token));
  add("W", figure(&HardwareFigures::watts));
  add("mm2", figure(&HardwareFigures::mm2));
  add("TOPS/W", figure(&HardwareFigures::tops_per_watt));
  add("TOPS/mm2", figure(&HardwareFigures::tops_per_mm2));
  add("EDP, J s", figure(&HardwareFigures::edp_js));
  std::string text = table.Markdown();
  for (const std::string& note : report.notes) text += note + '\n';
  return text;
}

}  // namespace stoch::cli
