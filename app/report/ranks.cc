// SPDX-License-Identifier: Apache-2.0
#include "app/report/ranks.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/report/table.h"
#include "engine/local_plan.h"
#include "engine/units.h"
#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/json_text.h"
#include "loader/range_text.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string SplitOf(const DecoderPlacement& placement) {
  if (!placement.rows.empty()) return "row";
  return placement.stripes.empty() ? "layer" : "sequence";
}

// "0..61"; layers of a rank are never none.
std::string LayersText(const IndexRange& layers) { return RangeText(layers.begin, layers.end - 1); }

Json About(const RankPlan& plan) {
  try {
    return Json::parse(plan.report.about);
  } catch (const Json::exception& error) {
    throw InvalidInput(fmt::format("rank {}: describes itself in another form: {}", plan.report.rank, error.what()));
  }
}

}  // namespace

Json MemoryJson(const MemoryBytes& bytes) {
  return {{"weights", bytes.weights},     {"scales", bytes.scales},
          {"embedding", bytes.embedding}, {"kv_cache", bytes.kv_cache},
          {"workspace", bytes.workspace}, {"runtime", bytes.runtime},
          {"total", bytes.total()},       {"host", bytes.host}};
}

std::string DescribeRank(const ModelFiles& files, const Backend& backend, const EngineOptions& engine) {
  MemoryBytes all;
  int64_t free_bytes = 0;
  Json names = Json::array();
  const std::vector<MemoryBytes> bytes = BytesOfPlacement(files, engine, backend);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const Device device = backend.devices()[i];
    all += bytes[i];
    names.push_back(DeviceName(device));
    // Logical devices of one CPU share its memory.
    if (i == 0 || device.kind != DeviceKind::kCpu) free_bytes += backend.info(device).free_bytes;
  }
  return JsonText(Json{{"devices", names},
                       {"name", backend.info(backend.devices().front()).name},
                       {"split", SplitOf(*engine.placement)},
                       {"memory", MemoryJson(all)},
                       {"free_bytes", free_bytes}});
}

std::string RanksText(std::span<const RankPlan> ranks, int64_t row_bytes) {
  Table table({"rank", "host", "devices", "layers", "weights", "KV cache", "rest", "free after"});
  std::string hops;
  for (const RankPlan& plan : ranks) {
    const Json about = About(plan);
    try {
      const Json& memory = about.at("memory");
      const auto bytes = [&memory](const char* name) { return memory.at(name).get<int64_t>(); };
      const std::string devices =
          fmt::format("{}", fmt::join(about.at("devices").get<std::vector<std::string>>(), ","));
      table.Add({std::to_string(plan.report.rank), plan.report.host,
                 devices + " " + about.at("split").get<std::string>(), LayersText(plan.layers),
                 Bytes(bytes("weights") + bytes("scales")), Bytes(bytes("kv_cache")),
                 Bytes(bytes("embedding") + bytes("workspace") + bytes("runtime")),
                 Bytes(about.at("free_bytes").get<int64_t>() - bytes("total"))});
    } catch (const Json::exception& error) {
      throw InvalidInput(fmt::format("rank {}: describes itself in another form: {}", plan.report.rank, error.what()));
    }
    hops += fmt::format("{}{} to {}: {:.0f} us", hops.empty() ? "" : ", ", plan.report.rank,
                        (static_cast<size_t>(plan.report.rank) + 1) % ranks.size(), plan.report.hop_us);
  }
  return table.Markdown() +
         fmt::format(
             "\nRank 0 has embedding, final norm and LM head too.\nhop of {}, measured: {}\nagree: commit, "
             "config, tensors, the beginning of each\n",
             Bytes(row_bytes), hops);
}

Json RanksJson(std::span<const RankPlan> ranks) {
  Json rows = Json::array();
  for (const RankPlan& plan : ranks) {
    Json row = {{"rank", plan.report.rank},
                {"host", plan.report.host},
                {"layers", {plan.layers.begin, plan.layers.end}},
                {"hop_us", plan.report.hop_us}};
    row.update(About(plan));
    rows.push_back(row);
  }
  return rows;
}

}  // namespace stoch::cli
