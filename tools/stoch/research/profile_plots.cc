// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/research/profile_plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "tools/stoch/plot/chart.h"
#include "tools/stoch/plot/heat_map.h"

namespace stoch::cli {
namespace {

// Of all heads: heads are rows of their own next to it.
bool IsDrawn(const ProfileRow& row) { return row.head < 0; }

// Rows layers, the LM head last; columns operators in the order of a layer.
std::optional<std::string> HeatOf(const ProfileReport& report, const ProfileResult& result) {
  HeatMap map;
  std::vector<int> layers;
  for (const ProfileRow& row : result.rows) {
    if (!IsDrawn(row)) continue;
    if (std::find(layers.begin(), layers.end(), row.layer) == layers.end()) layers.push_back(row.layer);
    if (std::find(map.columns.begin(), map.columns.end(), row.op) == map.columns.end()) map.columns.push_back(row.op);
  }
  map.values.resize(layers.size() * map.columns.size());
  map.logarithmic = true;
  bool any = false;
  for (const ProfileRow& row : result.rows) {
    if (!IsDrawn(row) || !row.error.rel_frobenius) continue;
    const auto y = std::find(layers.begin(), layers.end(), row.layer) - layers.begin();
    const auto x = std::find(map.columns.begin(), map.columns.end(), row.op) - map.columns.begin();
    const double value = *row.error.rel_frobenius;
    if (!(value > 0)) continue;  // an exact operator is grey
    map.values[static_cast<size_t>(y) * map.columns.size() + static_cast<size_t>(x)] = value;
    any = true;
  }
  if (!any) return std::nullopt;
  for (const int layer : layers) map.rows.push_back(layer < 0 ? "head" : std::to_string(layer));
  map.title = fmt::format("{}: {} ({} errors)", report.model, result.config, report.mode);
  map.x_label = "operator";
  map.y_label = "layer";
  map.value_label = "relative error";
  return HeatMapSvg(map);
}

// The mean relative error of every operator over its average stream length, a point a configuration.
std::optional<std::string> ErrorOverLength(const ProfileReport& report) {
  Chart chart;
  chart.title = fmt::format("{}: {} errors", report.model, report.mode);
  chart.x_label = "average stream length (cycles)";
  chart.y_label = "relative error, mean over layers";
  chart.x_logarithmic = true;
  chart.y_logarithmic = true;
  for (const ProfileResult& result : report.results) {
    const std::map<std::string, std::optional<double>> lengths = result.cost.by_op();
    std::vector<std::string> order;
    std::map<std::string, std::pair<double, int>> sums;
    for (const ProfileRow& row : result.rows) {
      if (!IsDrawn(row) || !row.error.rel_frobenius) continue;
      auto& [sum, count] = sums[row.op];
      if (count == 0) order.push_back(row.op);
      sum += *row.error.rel_frobenius;
      ++count;
    }
    for (const std::string& op : order) {
      const auto length = lengths.find(op);
      const double error = sums[op].first / sums[op].second;
      if (length == lengths.end() || !length->second || !(*length->second > 0) || !(error > 0)) continue;
      auto series = std::find_if(chart.series.begin(), chart.series.end(),
                                 [&](const ChartSeries& one) { return one.name == op; });
      if (series == chart.series.end()) {
        chart.series.push_back({.name = op, .points = {}, .line = true});
        series = chart.series.end() - 1;
      }
      series->points.push_back({*length->second, error, result.config});
    }
  }
  if (chart.series.empty()) return std::nullopt;
  for (ChartSeries& series : chart.series) {
    std::stable_sort(series.points.begin(), series.points.end(),
                     [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
  }
  return ChartSvg(chart);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> ProfilePlots(const ProfileReport& report) {
  std::vector<std::pair<std::string, std::string>> plots;
  for (size_t i = 0; i < report.results.size(); ++i) {
    if (auto svg = HeatOf(report, report.results[i])) plots.emplace_back(fmt::format("heat-{}.svg", i + 1), *svg);
  }
  if (auto svg = ErrorOverLength(report)) plots.emplace_back("error-over-length.svg", *svg);
  return plots;
}

}  // namespace stoch::cli
