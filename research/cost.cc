// SPDX-License-Identifier: Apache-2.0
#include "research/cost.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"

namespace stoch {
namespace {

using Json = nlohmann::ordered_json;

bool IsAttention(const OperatorCost& op) { return op.op == "qk" || op.op == "av"; }

// The average of the operators that `wanted` takes; absent where they have no macs, or lengths that are not known.
template <typename Wanted>
std::optional<double> Average(const ScCost& cost, const Wanted& wanted) {
  Int128 macs = 0;
  Int128 mac_cycles = 0;
  for (const OperatorCost& op : cost.operators) {
    if (!wanted(op)) continue;
    if (!op.lengths_known) return std::nullopt;
    macs += op.macs.sc;
    mac_cycles += op.mac_cycles;
  }
  if (macs == 0) return std::nullopt;
  return RatioOf(mac_cycles, macs);
}

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json MacsJson(const MacCounts& macs) {
  Json integers = Json::object();
  for (const auto& [bits, count] : macs.integers) integers["int" + std::to_string(bits)] = IntegerJson(count);
  Json json = {{"sc", IntegerJson(macs.sc)}, {"table", IntegerJson(macs.table)}};
  json.update(integers);
  if (macs.fp8 != 0) json["fp8_e4m3"] = IntegerJson(macs.fp8);
  if (macs.mxint8 != 0) json["mxint8"] = IntegerJson(macs.mxint8);
  json["fp"] = IntegerJson(macs.fp);
  return json;
}

Json ShareJson(const MacCounts& macs) {
  Json json = {{"sc", RatioOf(macs.sc, macs.all())},
               {"table", RatioOf(macs.table, macs.all())},
               {"int", RatioOf(macs.integer(), macs.all())}};
  if (macs.fp8 != 0) json["fp8_e4m3"] = RatioOf(macs.fp8, macs.all());
  if (macs.mxint8 != 0) json["mxint8"] = RatioOf(macs.mxint8, macs.all());
  json["fp"] = RatioOf(macs.fp, macs.all());
  return json;
}

Json ArrayJson(const Trace::ArrayCounts& array) {
  return {{"cycles", IntegerJson(array.cycles)},
          {"sng_bits", IntegerJson(array.sng_bits)},
          {"sram_read_bytes", IntegerJson(array.sram_read_bytes)}};
}

Json OperatorJson(const OperatorCost& op, bool with_array) {
  Json json = {{"layer", op.layer < 0 ? Json(nullptr) : Json(op.layer)}, {"op", op.op}, {"macs", MacsJson(op.macs)}};
  if (op.macs.sc == 0 || !op.lengths_known) return json;
  json["mac_cycles"] = IntegerJson(op.mac_cycles);
  Json by_len = Json::object();
  for (auto at = op.macs_by_len.rbegin(); at != op.macs_by_len.rend(); ++at) {
    by_len[std::to_string(at->first)] = IntegerJson(at->second);
  }
  json["macs_by_stoc_len"] = by_len;
  json["dram_read_bytes"] = IntegerJson(op.array.dram_read_bytes);
  if (with_array) json["array"] = ArrayJson(op.array);
  return json;
}

}  // namespace

Json IntegerJson(Int128 value) {
  if (value < std::numeric_limits<int64_t>::min() || value > std::numeric_limits<int64_t>::max()) return ToText(value);
  return static_cast<int64_t>(value);
}

Int128 MacCounts::integer() const {
  Int128 sum = 0;
  for (const auto& [bits, count] : integers) sum += count;
  return sum;
}

MacCounts& MacCounts::operator+=(const MacCounts& other) {
  sc += other.sc;
  table += other.table;
  for (const auto& [bits, count] : other.integers) integers[bits] += count;
  fp8 += other.fp8;
  mxint8 += other.mxint8;
  fp += other.fp;
  return *this;
}

MacCounts ScCost::macs() const {
  MacCounts sum;
  for (const OperatorCost& op : operators) sum += op.macs;
  return sum;
}

bool ScCost::lengths_known() const {
  for (const OperatorCost& op : operators) {
    if (!op.lengths_known) return false;
  }
  return true;
}

std::optional<double> ScCost::mac_average() const {
  return Average(*this, [](const OperatorCost&) { return true; });
}
std::optional<double> ScCost::linears_average() const {
  return Average(*this, [](const OperatorCost& op) { return !IsAttention(op); });
}
std::optional<double> ScCost::attention_average() const { return Average(*this, IsAttention); }

std::map<std::string, std::optional<double>> ScCost::by_op() const {
  std::map<std::string, std::optional<double>> result;
  for (const OperatorCost& one : operators) {
    if (result.count(one.op) != 0) continue;
    result[one.op] = Average(*this, [&](const OperatorCost& op) { return op.op == one.op; });
  }
  return result;
}

Trace::ArrayCounts ScCost::array() const {
  Trace::ArrayCounts sum;
  for (const OperatorCost& op : operators) sum += op.array;
  return sum;
}

Int128 ScCost::mac_cycles() const {
  Int128 sum = 0;
  for (const OperatorCost& op : operators) sum += op.mac_cycles;
  return sum;
}

ScCost& ScCost::operator+=(const ScCost& other) {
  STOCH_CHECK(operators.size() == other.operators.size() && tile_cycles.size() == other.tile_cycles.size());
  calls += other.calls;
  for (size_t i = 0; i < operators.size(); ++i) {
    OperatorCost& to = operators[i];
    const OperatorCost& from = other.operators[i];
    STOCH_CHECK(to.layer == from.layer && to.op == from.op);
    to.macs += from.macs;
    to.lengths_known = to.lengths_known && from.lengths_known;
    to.mac_cycles += from.mac_cycles;
    for (const auto& [length, macs] : from.macs_by_len) to.macs_by_len[length] += macs;
    to.array += from.array;
  }
  const Int128 sc = macs().sc;
  for (size_t i = 0; i < tile_cycles.size(); ++i) {
    tile_cycles[i] += other.tile_cycles[i];
    tile_averages[i].second = RatioOf(tile_cycles[i], sc);
  }
  return *this;
}

Json ScCost::ToJson(bool layers) const {
  Json by_op_json = Json::object();
  const std::map<std::string, std::optional<double>> averages = by_op();
  for (const OperatorCost& op : operators) by_op_json[op.op] = OrNull(averages.at(op.op));
  const MacCounts total = macs();
  Json json = {{"mac_avg_stoc_len", OrNull(mac_average())},
               {"mac_avg_stoc_len_linears", OrNull(linears_average())},
               {"mac_avg_stoc_len_attention", OrNull(attention_average())},
               {"mac_avg_stoc_len_by_op", by_op_json},
               {"mac_share", ShareJson(total)},
               {"macs", MacsJson(total)},
               {"calls", calls}};
  if (lengths_known()) {
    json["mac_cycles"] = IntegerJson(mac_cycles());
    Json tiles = Json::object();
    for (const auto& [rows, average] : tile_averages) tiles[std::to_string(rows)] = average;
    json["tile_avg_stoc_len"] = tiles;
    json["dram_read_bytes"] = IntegerJson(array().dram_read_bytes);
    if (array_shape) {
      json["array"] = {
          {"R", array_shape->rows}, {"C", array_shape->cols}, {"K", array_shape->depth}, {"FILL", array_shape->fill}};
      json["array"].update(ArrayJson(array()));
    }
  }
  if (layers) {
    Json list = Json::array();
    for (const OperatorCost& op : operators) list.push_back(OperatorJson(op, array_shape.has_value()));
    json["operators"] = list;
  }
  return json;
}

}  // namespace stoch
