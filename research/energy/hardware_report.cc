// SPDX-License-Identifier: Apache-2.0
#include "research/energy/hardware_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/quote.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxJsonBytes = size_t{64} << 20;
constexpr size_t kMostUnknown = 16;
constexpr int kBaselineBits = 8;

[[noreturn]] void Reject(const std::string& name, const std::string& key, const Json& value,
                         const std::string& allowed) {
  const std::string text = value.is_structured() ? std::string(JsonTypeName(value))
                           : value.is_string()   ? Quoted(value.get<std::string>())
                                                 : value.dump();
  throw InvalidInput(name + ": " + key + " = " + text + ": allowed is " + allowed);
}

double Number(const std::string& name, const std::string& key, const Json& value, bool may_be_zero) {
  const bool fits = value.is_number() && std::isfinite(value.get<double>()) &&
                    (value.get<double>() > 0 || (may_be_zero && value.get<double>() == 0));
  if (!fits) Reject(name, key, value, may_be_zero ? "a number, 0 or more" : "a number above 0");
  return value.get<double>();
}

void RequireSource(const std::string& name, const std::string& key, const Json& entry) {
  const auto source = entry.find("source");
  const bool cited = source != entry.end() && source->is_string() &&
                     source->get<std::string>().find_first_not_of(" \t\n") != std::string::npos;
  if (!cited) throw InvalidInput(name + ": " + key + " has no source: a citation is required");
}

double AreaOf(const std::string& name, const Json& area) {
  if (!area.is_object() || area.empty()) Reject(name, "area", area, "{COMPONENT: {um2, count, source}}");
  double sum = 0;
  for (const auto& [component, entry] : area.items()) {
    const std::string key = "area." + component;
    if (!entry.is_object()) Reject(name, key, entry, "{um2, count, source}");
    RequireSource(name, key, entry);
    for (const char* part : {"um2", "count"}) {
      if (!entry.contains(part)) throw InvalidInput(name + ": " + key + " has no " + part);
    }
    sum = sum + Number(name, key + ".um2", entry["um2"], true) * Number(name, key + ".count", entry["count"], true);
  }
  return sum;
}

std::optional<double> Ratio(std::optional<double> a, std::optional<double> b) {
  if (!a || !b || *b == 0) return std::nullopt;
  return *a / *b;
}

// Cycles of the same tiles where every dimension takes one: exact where an operator ran at one length and a tile costs
// nothing besides.
std::optional<Int128> CyclesAtOne(const ScCost& cost) {
  if (cost.array_shape->fill != 0) return std::nullopt;
  Int128 sum = 0;
  for (const OperatorCost& op : cost.operators) {
    if (op.array.cycles == 0) continue;
    if (op.macs_by_len.size() != 1 || op.macs_by_len.begin()->first == 0) return std::nullopt;
    sum += op.array.cycles / op.macs_by_len.begin()->first;
  }
  return sum;
}

// The same products as macs of integers, one cycle each.
ScCost InIntegers(const ScCost& cost) {
  ScCost integers = cost;
  for (OperatorCost& op : integers.operators) {
    for (const auto& [length, macs] : op.macs_by_len) op.macs.integers[kBaselineBits] += length > 0 ? macs : 0;
    op.macs.sc = 0;
    op.mac_cycles = 0;
    op.macs_by_len.clear();
    op.array.sng_bits = 0;
  }
  return integers;
}

HardwareColumn ColumnOf(const std::string& name, const ScCost& cost, std::optional<Int128> tokens,
                        const HardwareFile& file, const EnergyTable* prices) {
  HardwareColumn column;
  column.name = name;
  column.counts.cycles = cost.array().cycles;
  column.counts.mac_cycles = cost.mac_cycles();
  column.counts.macs = cost.macs().sc;
  column.counts.array = *cost.array_shape;
  column.counts.tokens = tokens;
  if (prices != nullptr) column.counts.energy_pj = PriceCost(cost, *prices).total;
  column.figures = FiguresOf(column.counts, file);
  return column;
}

bool HasRecords(const TraceFile& trace) {
  return trace.schema == "scmp-trace-v1" && std::all_of(trace.groups.begin(), trace.groups.end(),
                                                        [](const TraceGroup& group) { return group.calls == 1; });
}

// The records of calls of one row, or of the others. qk and av have a row for every head.
TraceFile CallsOf(const TraceFile& trace, bool one_row) {
  TraceFile part = trace;
  part.groups.clear();
  part.batches.clear();
  part.chunk_d.clear();
  for (size_t i = 0; i < trace.groups.size(); ++i) {
    if ((trace.groups[i].rows / trace.batches[i] == 1) != one_row) continue;
    part.groups.push_back(trace.groups[i]);
    part.batches.push_back(trace.batches[i]);
    part.chunk_d.push_back(trace.chunk_d[i]);
  }
  for (OperatorCost& op : part.cost.operators) {
    OperatorCost own;
    own.layer = op.layer;
    own.op = op.op;
    op = own;
    for (const TraceGroup& group : part.groups) {
      if (group.block != op.layer || group.op != op.op) continue;
      op.macs.sc += group.macs;
      op.mac_cycles += group.macs * group.stoc_len;
      op.macs_by_len[group.stoc_len] += group.macs;
    }
  }
  part.is_ours = false;  // bytes of memory are those of these records
  return part;
}

}  // namespace

HardwareFile ParseHardwareFile(std::string_view text, const std::string& name) {
  if (text.size() > kMaxJsonBytes) throw InvalidInput(name + ": has more than 64 MiB");
  const Json root = ParseBoundedJson(text, name);
  if (!root.is_object()) Reject(name, "the file", root, "an object");
  HardwareFile file;
  file.name = name;
  for (const char* key : {"schema", "clock_mhz"}) {
    if (!root.contains(key)) throw InvalidInput(name + ": has no " + key);
  }
  for (const auto& [key, value] : root.items()) {
    if (key == "schema") {
      if (value != "stoch-hw-v1") Reject(name, key, value, "stoch-hw-v1");
    } else if (key == "clock_mhz") {
      file.clock_mhz = Number(name, key, value, false);
    } else if (key == "area") {
      file.area_um2 = AreaOf(name, value);
    } else if (key == "leakage_mw") {
      file.leakage_mw = Number(name, key, value, true);
      RequireSource(name, key, root);
    } else if (key == "energy") {
      if (!value.is_string()) Reject(name, key, value, "the path of a stoch-energy-v1 file");
      file.energy = value.get<std::string>();
    } else if (key != "source" && file.unknown_keys.size() < kMostUnknown) {
      file.unknown_keys.push_back(Quoted(key));
    }
  }
  return file;
}

HardwareFigures FiguresOf(const HardwareCounts& counts, const HardwareFile& file) {
  const auto number = [](Int128 count) { return static_cast<double>(count); };
  HardwareFigures figures;
  figures.seconds = number(counts.cycles) / (file.clock_mhz * 1e6);
  const Int128 units = static_cast<Int128>(counts.array.rows) * counts.array.cols * counts.array.depth;
  figures.utilisation = number(counts.mac_cycles) / (number(counts.cycles) * number(units));
  figures.tops = 2 * number(counts.macs) / figures.seconds / 1e12;
  std::optional<double> tokens;
  if (counts.tokens) tokens = number(*counts.tokens);
  figures.tokens_per_s = Ratio(tokens, figures.seconds);
  if (counts.energy_pj) {
    figures.joules = *counts.energy_pj * 1e-12 + file.leakage_mw.value_or(0) * 1e-3 * figures.seconds;
    figures.watts = *figures.joules / figures.seconds;
    figures.edp_js = *figures.joules * figures.seconds;
  }
  figures.joules_per_token = Ratio(figures.joules, tokens);
  figures.tops_per_watt = Ratio(figures.tops, figures.watts);
  if (file.area_um2) figures.mm2 = *file.area_um2 * 1e-6;
  figures.tops_per_mm2 = Ratio(figures.tops, figures.mm2);
  return figures;
}

TracePositions PositionsOf(const TraceFile& trace) {
  TracePositions positions;
  // A linear of the first layer: each position once, where its rows have whole widths.
  const TraceGroup* first = nullptr;
  for (const TraceGroup& group : trace.groups) {
    if (group.block >= 0 && group.op != "qk" && group.op != "av" && (first == nullptr || group.block < first->block)) {
      first = &group;
    }
  }
  if (first == nullptr) return positions;
  const OperatorCost* cost = nullptr;
  for (const OperatorCost& op : trace.cost.operators) {
    if (op.layer == first->block && op.op == first->op) cost = &op;
  }
  const Int128 width = static_cast<Int128>(first->d_in) * first->d_out;
  for (const TraceGroup& group : trace.groups) {
    if (group.block != first->block || group.op != first->op) continue;
    if (group.d_in != first->d_in || group.d_out != first->d_out) return positions;  // chunks of their own lengths
  }
  if (cost == nullptr || cost->macs.sc % width != 0) return positions;
  positions.all = cost->macs.sc / width;
  if (!HasRecords(trace)) return positions;
  positions.prompt = positions.generated = 0;
  for (size_t i = 0; i < trace.groups.size(); ++i) {
    const TraceGroup& group = trace.groups[i];
    if (group.block != first->block || group.op != first->op) continue;
    *(group.rows / trace.batches[i] == 1 ? positions.generated : positions.prompt) += group.rows;
  }
  return positions;
}

HardwareReport ReportHardware(const TraceFile& trace, const ScCost& cost, const HardwareFile& file,
                              const EnergyTable* prices) {
  if (!cost.array_shape) throw InvalidInput("--hw: " + trace.name + " counts no array: give --array R,C,K[,FILL]");
  if (cost.array().cycles == 0) throw InvalidInput("--hw: " + trace.name + " has no cycle of an array");
  HardwareReport report;
  const TracePositions positions = PositionsOf(trace);
  report.columns.push_back(ColumnOf("sc", cost, positions.all, file, prices));
  const std::string integers = "int" + std::to_string(kBaselineBits);
  if (const std::optional<Int128> cycles = CyclesAtOne(cost)) {
    const ScCost baseline = InIntegers(cost);
    HardwareColumn column;
    column.name = integers;
    column.counts = report.columns.front().counts;
    column.counts.cycles = *cycles;
    column.counts.mac_cycles = column.counts.macs;
    column.counts.energy_pj.reset();
    const bool priced = prices != nullptr && prices->actions.contains("int_mac_" + std::to_string(kBaselineBits));
    if (priced) column.counts.energy_pj = PriceCost(baseline, *prices).total;
    column.figures = FiguresOf(column.counts, file);
    report.columns.push_back(column);
  } else {
    report.notes.push_back("no column of " + integers +
                           ": its cycles follow from those of one length an operator, without FILL");
  }
  if (positions.prompt && *positions.prompt > 0 && *positions.generated > 0) {
    for (const bool one_row : {false, true}) {
      const TraceFile part = CallsOf(trace, one_row);
      const ScCost own = CountArray(part, *cost.array_shape);
      report.columns.push_back(ColumnOf(one_row ? "sc, generated" : "sc, prompt", own,
                                        one_row ? positions.generated : positions.prompt, file, prices));
    }
  }
  if (prices == nullptr) report.notes.emplace_back("no energy: the file names none, and neither does --energy");
  if (!positions.all) report.notes.emplace_back("no tokens: chunks have lengths of their own");
  const bool exact_head = std::any_of(cost.operators.begin(), cost.operators.end(),
                                      [](const OperatorCost& op) { return op.layer < 0 && op.macs.sc == 0; });
  report.notes.push_back(std::string("not counted: ") + (exact_head ? "the exact LM head, " : "") +
                         "softmax, norms, and activations in DRAM");
  return report;
}

nlohmann::ordered_json HardwareJson(const HardwareReport& report) {
  nlohmann::ordered_json columns = nlohmann::ordered_json::array();
  for (const HardwareColumn& column : report.columns) {
    const HardwareFigures& f = column.figures;
    nlohmann::ordered_json json = {{"name", column.name}, {"cycles", IntegerJson(column.counts.cycles)}};
    if (column.counts.tokens) json["tokens"] = IntegerJson(*column.counts.tokens);
    json["seconds"] = f.seconds;
    json["utilisation"] = f.utilisation;
    json["tops"] = f.tops;
    const std::pair<const char*, std::optional<double>> others[] = {{"tokens_per_s", f.tokens_per_s},
                                                                    {"joules", f.joules},
                                                                    {"joules_per_token", f.joules_per_token},
                                                                    {"watts", f.watts},
                                                                    {"mm2", f.mm2},
                                                                    {"tops_per_watt", f.tops_per_watt},
                                                                    {"tops_per_mm2", f.tops_per_mm2},
                                                                    {"edp_js", f.edp_js}};
    for (const auto& [name, value] : others) {
      if (value) json[name] = *value;
    }
    columns.push_back(std::move(json));
  }
  return {{"columns", columns}, {"notes", report.notes}};
}

std::string HardwareCsv(const ScCost& cost, const HardwareFile& file, const EnergyTable* prices) {
  std::vector<std::string> actions;
  std::vector<ActionCounts> counts;
  for (const OperatorCost& op : cost.operators) {
    counts.push_back(CountActions(op, cost.array_shape.has_value()));
    for (const auto& [action, count] : counts.back()) {
      const bool priced = prices != nullptr && prices->actions.contains(action);
      if (priced && std::find(actions.begin(), actions.end(), action) == actions.end()) actions.push_back(action);
    }
  }
  std::string text = "layer,op,unit,cycles,seconds";
  for (const std::string& action : actions) text += ',' + action;
  text += '\n';
  for (size_t i = 0; i < cost.operators.size(); ++i) {
    const OperatorCost& op = cost.operators[i];
    text += fmt::format("{},{},,{},{:.9g}", op.layer < 0 ? "" : std::to_string(op.layer), op.op,
                        ToText(op.array.cycles), static_cast<double>(op.array.cycles) / (file.clock_mhz * 1e6));
    for (const std::string& action : actions) {
      double joules = 0;
      for (const auto& [name, count] : counts[i]) {
        if (name == action) joules = static_cast<double>(count) * prices->actions.at(action) * 1e-12;
      }
      text += fmt::format(",{:.9g}", joules);
    }
    text += '\n';
  }
  return text;
}

}  // namespace stoch
