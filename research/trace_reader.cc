// SPDX-License-Identifier: Apache-2.0
#include "research/trace_reader.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/quote.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxJsonBytes = size_t{64} << 20;
constexpr int64_t kMaxSide = int64_t{1} << 31;
constexpr int64_t kMaxCount = int64_t{1} << 53;
constexpr int kMaxLength = 1 << 16;

[[noreturn]] void Reject(const std::string& where, const std::string& key, const Json& value,
                         const std::string& allowed) {
  const std::string text = value.is_structured() ? std::string(JsonTypeName(value)) : JsonText(value);
  throw InvalidInput(where + ": " + key + " = " + Quoted(text) + ": allowed is " + allowed);
}

const Json& At(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object()) throw InvalidInput(where + ": expected an object, got " + std::string(JsonTypeName(object)));
  const auto found = object.find(key);
  if (found == object.end()) throw InvalidInput(where + ": has no " + key);
  return *found;
}

int64_t Whole(const Json& object, const std::string& key, const std::string& where, int64_t low, int64_t high) {
  const Json& value = At(object, key.c_str(), where);
  const bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() >> 63 == 0);
  if (!fits || value.get<int64_t>() < low || value.get<int64_t>() > high) {
    Reject(where, key, value, std::to_string(low) + ".." + std::to_string(high));
  }
  return value.get<int64_t>();
}

// A count: a number, or decimal text beyond 64 bits.
Int128 CountOf(const Json& value, const std::string& key, const std::string& where) {
  constexpr size_t kMostDigits = 26;  // sums of millions of them, times lengths, fit 128 bits
  if (value.is_number_integer() && value >= 0) {
    return value.is_number_unsigned() ? static_cast<Int128>(value.get<uint64_t>()) : value.get<int64_t>();
  }
  if (value.is_string()) {
    const std::string text = value.get<std::string>();
    const bool digits = !text.empty() && text.size() <= kMostDigits &&
                        std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    Int128 count = 0;
    for (size_t i = 0; digits && i < text.size(); ++i) count = count * 10 + (text[i] - '0');
    if (digits) return count;
  }
  Reject(where, key, value, "a count of 0 or more");
}

Int128 Count(const Json& object, const std::string& key, const std::string& where) {
  return CountOf(At(object, key.c_str(), where), key, where);
}

// One group of a summary, or one record.
void AddGroup(const Json& json, const std::string& where, bool is_record, TraceFile* file) {
  TraceGroup group;
  const Json& block = At(json, "block", where);
  if (!block.is_null()) group.block = static_cast<int>(Whole(json, "block", where, -1, 1 << 20));
  const Json& op = At(json, "op", where);
  if (op.is_string()) {
    group.op = op.get<std::string>();
  } else if (!op.is_null()) {
    Reject(where, "op", op, "a name");
  }
  constexpr size_t kMostName = 256;
  if (group.op.size() > kMostName) Reject(where, "op", "of " + std::to_string(group.op.size()) + " bytes", "a name");
  const Json& unit = At(json, "unit", where);
  if (!unit.is_null()) group.unit = Whole(json, "unit", where, 0, kMaxSide);
  group.stoc_len = static_cast<int>(Whole(json, "stoc_len", where, 1, kMaxLength));
  group.d_in = Whole(json, "d_in", where, 1, kMaxSide);
  group.d_out = Whole(json, "d_out", where, 1, kMaxSide);
  group.calls = is_record ? 1 : Whole(json, "calls", where, 1, kMaxCount);
  group.rows = Whole(json, "rows", where, 1, kMaxCount);
  group.macs = Count(json, "macs", where);
  group.row_cycles = Count(json, "row_cycles", where);
  group.dims_vary = !is_record && At(json, "dims_vary", where) == true;
  const Int128 whole = static_cast<Int128>(group.rows) * group.d_in * group.d_out;
  // Rows of causal attention see a part of the largest shape; shapes that vary may be those of the first call.
  const bool partial = group.op == "qk" || group.op == "av";
  if (!group.dims_vary && (group.macs > whole || (!partial && group.macs != whole))) {
    throw InvalidInput(where + ": macs = " + ToText(group.macs) + ": rows * d_in * d_out is " + ToText(whole));
  }
  if (group.row_cycles != static_cast<Int128>(group.rows) * group.stoc_len) {
    throw InvalidInput(where + ": row_cycles = " + ToText(group.row_cycles) + ": rows * stoc_len is " +
                       ToText(static_cast<Int128>(group.rows) * group.stoc_len));
  }
  const auto chunk = json.find("chunk_d");
  const bool has_chunk = chunk != json.end() && !chunk->is_null();
  file->chunk_d.push_back(has_chunk ? Whole(json, "chunk_d", where, 0, kMaxSide) : 0);
  file->batches.push_back(is_record ? Whole(json, "batch", where, 1, group.rows) : 1);
  if (group.rows % file->batches.back() != 0) Reject(where, "batch", file->batches.back(), "a divisor of rows");
  file->groups.push_back(std::move(group));
}

// By (layer, operator), the LM head and what has no block last.
std::map<std::pair<int, std::string>, OperatorCost> SumGroups(const TraceFile& file) {
  std::map<std::pair<int, std::string>, OperatorCost> sums;
  for (const TraceGroup& group : file.groups) {
    OperatorCost& op = sums[{group.block, group.op}];
    op.layer = group.block;
    op.op = group.op;
    op.macs.sc += group.macs;
    op.mac_cycles += group.macs * group.stoc_len;
    op.macs_by_len[group.stoc_len] += group.macs;
  }
  return sums;
}

Trace::ArrayCounts ReadArray(const Json& json, const std::string& where) {
  Trace::ArrayCounts counts;
  counts.cycles = Count(json, "cycles", where);
  counts.sng_bits = Count(json, "sng_bits", where);
  counts.sram_read_bytes = Count(json, "sram_read_bytes", where);
  return counts;
}

// The header of our own traces; what it says must follow from the groups as far as those tell it.
void ReadOrigin(const Json& header, TraceFile* file) {
  const auto sums = SumGroups(*file);
  const auto ours = header.is_object() ? header.find("stoch") : header.end();
  if (!header.is_object() || ours == header.end()) {
    for (const auto& [at, op] : sums) {
      if (at.first >= 0) file->cost.operators.push_back(op);
    }
    for (const auto& [at, op] : sums) {
      if (at.first < 0) file->cost.operators.push_back(op);
    }
    return;
  }
  file->is_ours = true;
  const std::string where = file->name + ": header.stoch";
  const auto text = [&](const std::string& key) {
    const Json& value = At(*ours, key.c_str(), where);
    if (!value.is_string()) Reject(where, key, value, "text");
    return value.get<std::string>();
  };
  file->config = text("config");
  file->model_sha256 = text("model_sha256");
  file->text_sha256 = text("text_sha256");
  const Json& cost = At(*ours, "sc_cost", where);
  const std::string cost_where = where + ".sc_cost";
  file->cost.calls = Whole(cost, "calls", cost_where, 0, kMaxCount);
  const Json& list = At(cost, "operators", cost_where);
  if (!list.is_array()) Reject(cost_where, "operators", list, "a list");
  size_t compared = 0;
  for (const Json& one : list) {
    OperatorCost op = ReadOperatorCost(one, cost_where + ".operators");
    const auto found = sums.find({op.layer, op.op});
    std::map<int, Int128> seen = op.macs_by_len;
    seen.erase(0);
    const std::map<int, Int128> expected = found == sums.end() ? std::map<int, Int128>{} : found->second.macs_by_len;
    const Int128 cycles = found == sums.end() ? Int128{0} : found->second.mac_cycles;
    if (seen != expected || op.mac_cycles != cycles) {
      throw InvalidInput(cost_where + ": " + Quoted(op.op) + " of layer " + std::to_string(op.layer) +
                         " has other macs than its groups");
    }
    compared += found == sums.end() ? 0 : 1;
    file->cost.operators.push_back(std::move(op));
  }
  if (compared != sums.size()) throw InvalidInput(cost_where + ": does not list every operator of the groups");
  if (cost.contains("array")) {
    const Json& array = cost["array"];
    const std::string array_where = cost_where + ".array";
    constexpr int64_t kMostSide = 1 << 20;
    file->cost.array_shape =
        ArrayShape{Whole(array, "R", array_where, 1, kMostSide), Whole(array, "C", array_where, 1, kMostSide),
                   Whole(array, "K", array_where, 1, kMostSide), Whole(array, "FILL", array_where, 0, kMostSide)};
  }
  if (!cost.contains("tile_avg_stoc_len")) return;
  for (const auto& [rows, average] : cost["tile_avg_stoc_len"].items()) {
    if (!average.is_number() || rows.empty() || rows.size() > 7 ||
        !std::all_of(rows.begin(), rows.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      Reject(cost_where, "tile_avg_stoc_len." + Quoted(rows), average, "a number for so many rows");
    }
    file->cost.tile_averages.emplace_back(std::stoll(rows), average.get<double>());
  }
  std::sort(file->cost.tile_averages.begin(), file->cost.tile_averages.end());
}

}  // namespace

OperatorCost ReadOperatorCost(const Json& json, const std::string& where) {
  OperatorCost op;
  const Json& layer = At(json, "layer", where);
  if (!layer.is_null()) op.layer = static_cast<int>(Whole(json, "layer", where, 0, 1 << 20));
  const Json& name = At(json, "op", where);
  if (!name.is_string()) Reject(where, "op", name, "a name");
  op.op = name.get<std::string>();
  const Json& macs = At(json, "macs", where);
  for (const auto& [key, value] : macs.items()) {
    const Int128 count = CountOf(value, "macs." + Quoted(key), where);
    if (key == "sc") {
      op.macs.sc = count;
    } else if (key == "table") {
      op.macs.table = count;
    } else if (key == "fp") {
      op.macs.fp = count;
    } else if (key == "fp8_e4m3") {
      op.macs.fp8 = count;
    } else if (key == "mxint8") {
      op.macs.mxint8 = count;
    } else if (key.size() == 4 && key.starts_with("int") && key[3] >= '2' && key[3] <= '8') {
      op.macs.integers[key[3] - '0'] = count;
    } else {
      Reject(where, "macs." + Quoted(key), value, "sc, table, int2..int8, fp8_e4m3, mxint8, fp");
    }
  }
  if (op.macs.sc == 0) return op;
  op.mac_cycles = Count(json, "mac_cycles", where);
  op.array.dram_read_bytes = Count(json, "dram_read_bytes", where);
  for (const auto& [key, value] : At(json, "macs_by_stoc_len", where).items()) {
    const bool digits = !key.empty() && key.size() <= 6 &&
                        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) throw InvalidInput(where + ": macs_by_stoc_len has the length " + Quoted(key));
    op.macs_by_len[std::stoi(key)] = CountOf(value, "macs_by_stoc_len." + key, where);
  }
  if (json.contains("array")) {
    const Int128 dram = op.array.dram_read_bytes;
    op.array = ReadArray(json["array"], where + ": array");
    op.array.dram_read_bytes = dram;
  }
  return op;
}

Int128 ReadCount(const Json& object, const std::string& key, const std::string& where) {
  return Count(object, key, where);
}

TraceFile ParseTraceFile(std::string_view text, const std::string& name) {
  TraceFile file;
  file.name = name;
  const std::string_view first = text.substr(0, text.find('\n'));
  const bool by_line = first.find("\"scmp-trace-v1\"") != std::string_view::npos;
  if (!by_line && text.size() > kMaxJsonBytes) throw InvalidInput(name + ": a summary of more than 64 MiB");
  const Json root = ParseBoundedJson(by_line ? first : text, name);
  const Json& schema = At(root, "schema", name);
  if (schema != "scmp-trace-v1" && schema != "scmp-trace-summary-v1") {
    Reject(name, "schema", schema, "scmp-trace-summary-v1, scmp-trace-v1");
  }
  file.schema = schema.get<std::string>();
  if (by_line != (file.schema == "scmp-trace-v1")) throw InvalidInput(name + ": a trace has its header on one line");
  const Json& header = At(root, "header", name);
  if (!by_line) {
    const Json& groups = At(root, "groups", name);
    if (!groups.is_array()) Reject(name, "groups", groups, "a list");
    for (size_t i = 0; i < groups.size(); ++i) {
      AddGroup(groups[i], name + ": group " + std::to_string(i), false, &file);
    }
  } else {
    text.remove_prefix(std::min(text.size(), first.size() + 1));
    int64_t line = 2;
    bool ended = false;
    for (; !text.empty(); ++line) {
      const std::string_view one = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), one.size() + 1));
      if (one.empty()) continue;
      const std::string where = name + ": line " + std::to_string(line);
      if (ended) throw InvalidInput(where + ": comes after the trailer");
      const Json record = ParseBoundedJson(one, where);
      if (record.is_object() && record.contains("trailer")) {
        const auto records = static_cast<int64_t>(file.groups.size());
        if (Whole(record, "n_records", where, 0, kMaxCount) != records) {
          Reject(where, "n_records", record["n_records"], std::to_string(records) + ", the records that are there");
        }
        ended = true;
      } else {
        AddGroup(record, where, true, &file);
      }
    }
    if (!ended) throw InvalidInput(name + ": has no trailer: the trace is cut off");
  }
  ReadOrigin(header, &file);
  return file;
}

ScCost CountArray(const TraceFile& file, const ArrayShape& array) {
  const auto refuse = [&](const TraceGroup& group, const std::string& why) {
    throw InvalidInput("--array: " + file.name + " does not say " + why + " of " + Quoted(group.op) + " of layer " +
                       std::to_string(group.block) + ": give --array to the command that writes the trace");
  };
  std::map<std::pair<int, std::string>, int> lengths;
  for (const TraceGroup& group : file.groups) {
    const auto [at, added] = lengths.emplace(std::pair(group.block, group.op), group.stoc_len);
    if (!added && at->second != group.stoc_len) refuse(group, "in which order lengths come");
  }
  Trace sums({1}, array);
  for (size_t i = 0; i < file.groups.size(); ++i) {
    const TraceGroup& group = file.groups[i];
    if (group.calls != 1) refuse(group, "how many rows each call has");
    TraceCall call;
    call.block = group.block;
    call.op = group.op;
    call.batch = file.batches[i];
    call.rows = group.rows / call.batch;
    // A file may claim any size: time goes by rows and chunks, and sums must fit 128 bits.
    constexpr int64_t kMostRows = int64_t{1} << 22;
    constexpr int64_t kMostChunks = int64_t{1} << 16;
    constexpr int64_t kMostDims = int64_t{1} << 26;
    const int64_t chunks = file.chunk_d[i] > 0 ? group.d_in / file.chunk_d[i] + 1 : 1;
    const bool large = call.rows > kMostRows || group.rows > (kMostRows << 10) || chunks > kMostChunks ||
                       std::max(group.d_in, group.d_out) > kMostDims;
    if (large) refuse(group, "a size below the limit");
    call.d_in = group.d_in;
    call.d_out = group.d_out;
    call.chunk_d = file.chunk_d[i];
    call.stoc_len = group.stoc_len;
    if (group.macs != static_cast<Int128>(group.rows) * group.d_in * group.d_out) {
      // Row r sees start + r + 1 positions, the last one the largest number of them.
      const bool is_qk = group.op == "qk";
      call.causal = true;
      call.head_dim = is_qk ? group.d_in : group.d_out;
      call.start = (is_qk ? group.d_out : group.d_in) - call.rows;
      const Int128 seen =
          static_cast<Int128>(call.rows) * call.start + static_cast<Int128>(call.rows) * (call.rows + 1) / 2;
      if (call.start < 0 || seen * call.batch * call.head_dim != group.macs) refuse(group, "what each row sees");
    }
    sums.Add(call);
  }
  ScCost cost = file.cost;
  cost.array_shape = array;
  for (OperatorCost& op : cost.operators) {
    const auto found = sums.operators().find({op.layer, op.op});
    if (found == sums.operators().end()) continue;
    const Int128 dram = file.is_ours ? op.array.dram_read_bytes : found->second.array.dram_read_bytes;
    op.array = found->second.array;
    op.array.dram_read_bytes = dram;
  }
  return cost;
}

}  // namespace stoch
