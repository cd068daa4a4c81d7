// SPDX-License-Identifier: Apache-2.0
#include "research/golden/golden_trace.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/error.h"
#include "research/trace.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

TraceCall CallOf(const Json& fields) {
  TraceCall call;
  call.block = fields.at("block").get<int>();
  call.op = fields.at("op").get<std::string>();
  if (!fields.at("unit").is_null()) call.unit = fields.at("unit").get<int64_t>();
  call.rows = fields.at("rows").get<int64_t>();
  call.batch = fields.value("batch", int64_t{1});
  call.d_in = fields.at("d_in").get<int64_t>();
  call.d_out = fields.at("d_out").get<int64_t>();
  call.chunk_d = fields.value("chunk_d", int64_t{0});
  call.stoc_len = fields.value("stoc_len", 0);
  call.causal = fields.value("causal", false);
  call.start = fields.value("start", int64_t{0});
  call.head_dim = fields.value("head_dim", int64_t{0});
  for (const Json& row : fields.value("lengths", Json::array())) {
    if (row.is_number()) {
      call.lengths.push_back(row.get<int>());
      continue;
    }
    call.per_row = static_cast<int64_t>(row.size());
    for (const Json& length : row) call.lengths.push_back(length.get<int>());
  }
  return call;
}

Json GroupJson(const TraceGroup& group) {
  return {{"block", group.block},
          {"op", group.op},
          {"unit", group.unit ? Json(*group.unit) : Json(nullptr)},
          {"stoc_len", group.stoc_len},
          {"d_in", group.d_in},
          {"d_out", group.d_out},
          {"dims_vary", group.dims_vary},
          {"calls", group.calls},
          {"rows", group.rows},
          {"macs", static_cast<int64_t>(group.macs)},
          {"row_cycles", static_cast<int64_t>(group.row_cycles)}};
}

}  // namespace

std::string CheckTraceGolden(const Json& fields, int64_t* compared) {
  std::vector<int64_t> tile_rows;
  for (const auto& [key, value] : fields.at("tile_avg_stoc_len").items()) tile_rows.push_back(std::stoll(key));
  std::optional<ArrayShape> array;
  if (fields.contains("array")) {
    const Json& shape = fields["array"];
    array = ParseArrayShape(shape.at("R").dump() + "," + shape.at("C").dump() + "," + shape.at("K").dump() + "," +
                            shape.value("fill", Json(0)).dump());
  }
  Trace trace(tile_rows, array);
  for (const Json& fields_of_call : fields.at("calls")) {
    const TraceCall call = CallOf(fields_of_call);
    constexpr int64_t kMostRows = int64_t{1} << 22;  // tiles are counted one by one
    if (call.rows > kMostRows) throw InvalidInput("rows = " + std::to_string(call.rows) + ": allowed is up to 4194304");
    trace.Add(call);
  }

  std::string problem;
  const auto same = [&](const std::string& what, const Json& got, const Json& expected) {
    ++*compared;
    if (got != expected) problem += what + " is " + got.dump() + ", expected " + expected.dump() + "; ";
  };
  Json groups = Json::array();
  for (const TraceGroup& group : trace.Groups()) groups.push_back(GroupJson(group));
  const Json& expected = fields.at("groups");
  same("number of groups", groups.size(), expected.size());
  for (size_t i = 0; i < std::min(groups.size(), expected.size()); ++i) {
    same("group " + std::to_string(i), groups[i], expected[i]);
  }
  const TraceCounts& total = trace.total();
  const Json& sums = fields.at("total");
  same("macs", static_cast<int64_t>(total.macs), sums.at("macs"));
  same("macs_pruned", static_cast<int64_t>(total.macs_pruned), sums.at("macs_pruned"));
  same("mac_cycles", static_cast<int64_t>(total.mac_cycles), sums.at("mac_cycles"));
  same("rows", static_cast<int64_t>(total.rows), sums.at("rows"));
  same("row_cycles", static_cast<int64_t>(total.row_cycles), sums.at("row_cycles"));
  same("mac_avg_stoc_len", total.mac_average(), sums.at("mac_avg_stoc_len"));
  same("row_avg_stoc_len", total.row_average(), sums.at("row_avg_stoc_len"));
  for (size_t i = 0; i < tile_rows.size(); ++i) {
    const std::string key = std::to_string(tile_rows[i]);
    same("tile average of " + key, trace.TileAverage(i), fields["tile_avg_stoc_len"][key]);
  }
  if (array) same("array_cycles", static_cast<int64_t>(trace.array().cycles), fields.at("array_cycles"));
  return problem;
}

}  // namespace stoch
