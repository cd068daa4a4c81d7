// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/research/sweep_summary.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "loader/json_text.h"
#include "tools/stoch/research/sweep_log.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

Json Optional(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json SummaryJson(const Summary& s) {
  return {{"mean", s.mean},
          {"sd", Optional(s.sd)},
          {"se", Optional(s.se)},
          {"min", s.min},
          {"max", s.max},
          {"ci95_low", Optional(s.ci95_low)},
          {"ci95_high", Optional(s.ci95_high)}};
}

// nll for each token of each window; empty where the row has none.
std::vector<double> NllByWindow(const Json& row) {
  std::vector<double> nll;
  if (!row.contains("metrics") || !row["metrics"].contains("nll_by_window")) return nll;
  for (const Json& window : row["metrics"]["nll_by_window"]) {
    nll.push_back(window.at("nll").get<double>() / window.at("tokens").get<double>());
  }
  return nll;
}

// The run of the reference that a run is compared with: of the same seed, else its only one.
std::optional<size_t> ReferenceOf(const SweepPlan& plan, const PlannedRun& run) {
  std::optional<size_t> found;
  int64_t runs = 0;
  for (size_t i = 0; i < plan.runs.size(); ++i) {
    if (plan.runs[i].configuration != *plan.reference) continue;
    ++runs;
    if (!found || plan.runs[i].seed == run.seed) found = i;
  }
  const bool fits = found && (runs == 1 || plan.runs[*found].seed == run.seed);
  return fits ? found : std::nullopt;
}

// {mean, se, z, ci95_low, ci95_high, ratio}, or nothing where a row lacks its windows.
std::optional<Json> PairedJson(const Json& row, const Json& reference) {
  const std::vector<double> own = NllByWindow(row), other = NllByWindow(reference);
  if (own.empty() || own.size() != other.size()) return std::nullopt;
  const PairedDifference paired = ComparePairs(own, other);
  return Json{{"mean", paired.mean},
              {"se", Optional(paired.se)},
              {"z", Optional(paired.z)},
              {"ci95_low", Optional(paired.ci95_low)},
              {"ci95_high", Optional(paired.ci95_high)},
              {"ratio", paired.ratio}};
}

std::vector<Json> ParseRows(const SweepPlan& plan, const std::vector<std::string>& rows) {
  STOCH_CHECK(rows.size() == plan.runs.size());
  std::vector<Json> parsed;
  for (const std::string& text : rows) parsed.push_back(Json::parse(text));
  if (!plan.reference) return parsed;
  for (size_t i = 0; i < parsed.size(); ++i) {
    parsed[i].erase("paired");
    if (plan.runs[i].configuration == *plan.reference) continue;
    const std::optional<size_t> reference = ReferenceOf(plan, plan.runs[i]);
    if (!reference) continue;
    if (const auto paired = PairedJson(parsed[i], parsed[*reference])) parsed[i]["paired"] = *paired;
  }
  return parsed;
}

void AddNumbers(const std::string& name, const Json& value, std::map<std::string, std::vector<double>>* to) {
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) AddNumbers(name.empty() ? key : name + "." + key, inner, to);
  } else if (value.is_number()) {
    (*to)[name].push_back(value.get<double>());
  }
}

std::vector<SweepSummary> Summaries(const SweepPlan& plan, const std::vector<Json>& rows) {
  std::vector<SweepSummary> summaries(plan.configurations.size());
  std::vector<std::map<std::string, std::vector<double>>> numbers(plan.configurations.size());
  std::vector<std::vector<double>> paired(plan.configurations.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const PlannedRun& run = plan.runs[i];
    SweepSummary& summary = summaries[run.configuration];
    summary.configuration = run.configuration;
    if (rows[i].contains("error")) {
      ++summary.failed;
      continue;
    }
    if (run.seed) summary.seeds.push_back(*run.seed);
    AddNumbers("", rows[i].at("metrics"), &numbers[run.configuration]);
    if (rows[i].contains("paired")) paired[run.configuration].push_back(rows[i]["paired"].at("mean").get<double>());
  }
  for (SweepSummary& summary : summaries) {
    for (const auto& [name, values] : numbers[summary.configuration]) summary.metrics[name] = Summarise(values);
    const std::vector<double>& means = paired[summary.configuration];
    if (!means.empty()) summary.paired = Summarise(means);
  }
  return summaries;
}

Json LineOf(const SweepPlan& plan, const SweepSummary& summary) {
  Json line = {{"schema", kSweepSummarySchema}, {"config", plan.configurations[summary.configuration]}};
  int64_t n = 0;
  Json metrics = Json::object();
  for (const auto& [name, values] : summary.metrics) {
    metrics[name] = SummaryJson(values);
    n = std::max(n, values.n);
  }
  line["n"] = n;
  line["failed"] = summary.failed;
  line["seeds"] = summary.seeds;
  line["metrics"] = metrics;
  if (summary.paired) {
    line["reference"] = {{"config", plan.configurations[*plan.reference]}, {"mean", SummaryJson(*summary.paired)}};
  }
  return line;
}

}  // namespace

std::vector<SweepSummary> SummariesOf(const SweepPlan& plan, const std::vector<std::string>& rows) {
  return Summaries(plan, ParseRows(plan, rows));
}

std::vector<std::string> FinishedLines(const SweepPlan& plan, const std::vector<std::string>& rows) {
  if (!plan.has_seeds && !plan.reference) return rows;
  std::vector<std::string> lines;
  const std::vector<Json> parsed = ParseRows(plan, rows);
  for (const Json& row : parsed) lines.push_back(JsonText(row));
  if (!plan.has_seeds) return lines;
  for (const SweepSummary& summary : Summaries(plan, parsed)) lines.push_back(JsonText(LineOf(plan, summary)));
  return lines;
}

}  // namespace stoch::cli
