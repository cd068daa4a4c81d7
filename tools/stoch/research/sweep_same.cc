// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/research/sweep_same.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <map>
#include <nlohmann/json.hpp>

#include "loader/json_text.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& row) { return JsonText(row); }

// {schema, key, config, same_as, ...}.
Json HeadOf(const SweepPlan& plan, const PlannedRun& run, const Json& row) {
  Json head = {{"schema", row.at("schema")}, {"key", run.key}, {"config", run.config}};
  if (run.seed) head["seed"] = *run.seed;
  head["same_as"] = plan.runs[*run.same_as].key;
  return head;
}

}  // namespace

void FindEqualRuns(SweepPlan* plan) {
  std::map<std::string, size_t> first;
  std::string named;
  for (size_t i = 0; i < plan->runs.size(); ++i) {
    PlannedRun& run = plan->runs[i];
    if (run.operators.empty()) continue;
    const auto [known, added] = first.emplace(run.operators, i);
    if (added) continue;
    run.same_as = known->second;
    named += fmt::format("{}{} (as {})", named.empty() ? "" : ", ", i, known->second);
  }
  if (named.empty()) return;
  spdlog::warn("runs, counted from 0, whose operators are those of an earlier run, which are not run but copied: {}",
               named);
}

std::optional<SweepRow> RowOfEqualRun(const SweepPlan& plan, const PlannedRun& run,
                                      const std::vector<std::string>& rows) {
  if (!run.same_as) return std::nullopt;
  for (const std::string& text : rows) {
    const Json row = Json::parse(text);
    if (row.at("key") != plan.runs[*run.same_as].key) continue;
    if (row.contains("error")) return std::nullopt;
    Json copy = HeadOf(plan, run, row);
    for (const char* part : {"metrics", "sc_cost"}) copy[part] = row.at(part);
    return SweepRow{Dump(copy), false};
  }
  return std::nullopt;
}

SweepRow WithSameAs(const SweepPlan& plan, const PlannedRun& run, SweepRow row) {
  if (!run.same_as || row.failed) return row;
  const Json own = Json::parse(row.text);
  Json marked = HeadOf(plan, run, own);
  marked.update(own);
  return {Dump(marked), false};
}

}  // namespace stoch::cli
