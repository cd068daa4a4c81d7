// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/research/sweep_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "loader/json_text.h"
#include "loader/sha256.h"
#include "research/trace_reader.h"
#include "tools/stoch/research/sweep_same.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Of a row, whose text is then some 100 MB with kl.
constexpr int64_t kMostPredictions = int64_t{1} << 20;

int64_t PartsOfRun(const SweepPlan& plan) {
  return (plan.max_windows + plan.windows_per_row - 1) / plan.windows_per_row;
}

OrderedJson CostJson(const ScCost& cost) {
  OrderedJson json = {{"calls", cost.calls}, {"operators", cost.ToJson(true).at("operators")}};
  for (size_t i = 0; i < cost.operators.size(); ++i) {
    if (!cost.operators[i].lengths_known) json["operators"][i]["lengths_known"] = false;
  }
  json["tile_cycles"] = OrderedJson::array();
  for (size_t i = 0; i < cost.tile_cycles.size(); ++i) {
    json["tile_cycles"].push_back(
        {{"rows", cost.tile_averages[i].first}, {"cycles", IntegerJson(cost.tile_cycles[i])}});
  }
  return json;
}

ScCost ReadCost(const Json& json, const SweepPlan& plan, const std::string& where) {
  ScCost cost;
  cost.calls = static_cast<int64_t>(ReadCount(json, "calls", where));
  cost.array_shape = plan.cost.array;
  for (const Json& one : json.at("operators")) {
    Json known = one;
    const bool lengths_known = known.value("lengths_known", true);
    if (!lengths_known) known.update({{"mac_cycles", 0}, {"dram_read_bytes", 0}, {"macs_by_stoc_len", Json::object()}});
    cost.operators.push_back(ReadOperatorCost(known, where));
    cost.operators.back().lengths_known = lengths_known;
  }
  const Int128 sc = cost.macs().sc;
  for (const Json& tile : json.at("tile_cycles")) {
    cost.tile_cycles.push_back(ReadCount(tile, "cycles", where));
    cost.tile_averages.emplace_back(tile.at("rows").get<int64_t>(), RatioOf(cost.tile_cycles.back(), sc));
  }
  return cost;
}

// JSON has no number that is none.
double NumberOf(const Json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

std::vector<LogitComparison> ReadComparisons(const Json& kl, size_t predictions, const std::string& where) {
  std::vector<LogitComparison> rows(predictions);
  for (const char* column : {"kld", "logprob", "base_logprob", "top", "base_top"}) {
    if (kl.at(column).size() != predictions) throw InvalidInput(where + ": kl." + column + " is incomplete");
  }
  for (size_t i = 0; i < predictions; ++i) {
    rows[i] = {NumberOf(kl["kld"][i]), NumberOf(kl["logprob"][i]), NumberOf(kl["base_logprob"][i]),
               kl["top"][i].get<int32_t>(), kl["base_top"][i].get<int32_t>()};
  }
  return rows;
}

// Errors: InvalidInput, nlohmann::json::exception: it is not the row of that part.
SweepPart ReadPart(const SweepPlan& plan, const PlannedRun& run, const Json& row, const std::string& where) {
  SweepPart part;
  const Json& metrics = row.at("metrics");
  const auto predictions = static_cast<size_t>(run.windows * (plan.ctx - 1));
  if (row.at("schema") != kSweepPartSchema || metrics.at("windows") != Json{run.first_window, run.windows} ||
      metrics.at("nll").size() != predictions) {
    throw InvalidInput(where + ": has other windows");
  }
  for (const Json& nll : metrics["nll"]) part.nll.push_back(NumberOf(nll));
  if (plan.Has("kl")) part.comparisons = ReadComparisons(metrics.at("kl"), predictions, where);
  if (!row.at("sc_cost").is_null()) part.cost = ReadCost(row["sc_cost"], plan, where);
  return part;
}

bool HaveEqualOperators(const ScCost& a, const ScCost& b) {
  return a.tile_cycles.size() == b.tile_cycles.size() &&
         std::equal(a.operators.begin(), a.operators.end(), b.operators.begin(), b.operators.end(),
                    [](const OperatorCost& x, const OperatorCost& y) { return x.layer == y.layer && x.op == y.op; });
}

void Append(const SweepPart& part, const std::string& where, SweepPart* all) {
  const bool is_first = all->nll.empty();
  all->nll.insert(all->nll.end(), part.nll.begin(), part.nll.end());
  all->comparisons.insert(all->comparisons.end(), part.comparisons.begin(), part.comparisons.end());
  if (is_first) {
    all->cost = part.cost;
    return;
  }
  if (all->cost.has_value() != part.cost.has_value() || (part.cost && !HaveEqualOperators(*all->cost, *part.cost))) {
    throw InvalidInput(where + ": counts other operators than the parts before it");
  }
  if (part.cost) *all->cost += *part.cost;
}

// The row of a run from those of its parts.
SweepRow JoinRun(const SweepPlan& plan, const PlannedRun& run, std::span<const PlannedRun> parts,
                 std::span<const std::string> rows) {
  OrderedJson joined = RowHead(run);
  SweepPart all;
  double elapsed_ms = 0;
  bool is_timed = true;
  std::optional<Json> error;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string where = fmt::format("the row of {}, windows {}..{}", run.config, parts[i].first_window,
                                          parts[i].first_window + parts[i].windows - 1);
    try {
      const Json row = Json::parse(rows[i]);
      is_timed = is_timed && row.contains("elapsed_ms");
      if (is_timed) elapsed_ms += row["elapsed_ms"].get<double>();
      if (row.contains("error")) {
        if (!error) error = row["error"];
        continue;
      }
      if (!error) Append(ReadPart(plan, parts[i], row, where), where, &all);
    } catch (const Json::exception&) {
      throw InvalidInput(where + ": is not as sweeps write it");
    }
  }
  if (error) {
    joined["error"] = *error;
  } else {
    RunNumbers numbers;
    numbers.result = SumNll(all.nll, plan.ctx - 1);
    if (plan.Has("kl")) {
      KlStatistics statistics;
      statistics.Add(all.comparisons);
      numbers.kl = statistics.Summary();
    }
    numbers.cost = all.cost;
    AddMetrics(plan, numbers, &joined);
  }
  if (is_timed) joined["elapsed_ms"] = elapsed_ms;
  return WithSameAs(plan, run, {JsonText(joined), error.has_value()});
}

}  // namespace

void CheckParts(const SweepPlan& plan) {
  if (plan.windows_per_row == 0) return;
  for (const char* metric : {"profile", "trace"}) {
    if (plan.Has(metric)) throw InvalidInput(fmt::format("windows_per_row: the metric {} is of whole runs", metric));
  }
  const int64_t most = std::max<int64_t>(1, kMostPredictions / (plan.ctx - 1));
  if (plan.windows_per_row <= most) return;
  throw InvalidInput(fmt::format("windows_per_row = {}: allowed is 1..{} with windows of {} tokens",
                                 plan.windows_per_row, most, plan.ctx));
}

SweepPlan DivideRuns(SweepPlan plan) {
  if (plan.windows_per_row == 0) return plan;
  const auto parts = static_cast<size_t>(PartsOfRun(plan));
  std::vector<PlannedRun> runs;
  for (const PlannedRun& run : plan.runs) {
    for (size_t i = 0; i < parts; ++i) {
      PlannedRun part = run;
      part.first_window = static_cast<int64_t>(i) * plan.windows_per_row;
      part.windows = std::min(plan.windows_per_row, plan.max_windows - part.first_window);
      part.key = Sha256Hex(JsonText(Json{{"run", run.key}, {"windows", {part.first_window, part.windows}}}));
      if (run.same_as) part.same_as = *run.same_as * parts + i;
      runs.push_back(std::move(part));
    }
  }
  plan.runs = std::move(runs);
  return plan;
}

void AddPart(const PlannedRun& run, const SweepPart& part, OrderedJson* row) {
  OrderedJson& metrics = (*row)["metrics"];
  metrics = {{"windows", {run.first_window, run.windows}}, {"nll", part.nll}};
  if (!part.comparisons.empty()) {
    OrderedJson& kl = metrics["kl"];
    for (const LogitComparison& one : part.comparisons) {
      kl["kld"].push_back(one.kld);
      kl["logprob"].push_back(one.logprob);
      kl["base_logprob"].push_back(one.base_logprob);
      kl["top"].push_back(one.top);
      kl["base_top"].push_back(one.base_top);
    }
  }
  (*row)["sc_cost"] = part.cost ? CostJson(*part.cost) : OrderedJson();
}

std::vector<std::string> JoinParts(const SweepPlan& plan, const SweepPlan& parts, std::span<const std::string> rows) {
  if (plan.windows_per_row == 0) return {rows.begin(), rows.end()};
  STOCH_CHECK(rows.size() == parts.runs.size());
  const auto each = static_cast<size_t>(PartsOfRun(plan));
  std::vector<std::string> joined;
  for (size_t i = 0; i < plan.runs.size(); ++i) {
    joined.push_back(
        JoinRun(plan, plan.runs[i], std::span(parts.runs).subspan(i * each, each), rows.subspan(i * each, each)).text);
  }
  return joined;
}

}  // namespace stoch::cli
