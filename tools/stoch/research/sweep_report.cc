// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/research/sweep_report.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "kernels/base/error.h"
#include "models/sc_model_config.h"
#include "research/statistics.h"
#include "tools/stoch/plot/chart.h"
#include "tools/stoch/research/plot_titles.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

// The value at a path of names joined by dots.
const Json* Find(const Json& object, std::string_view path) {
  const Json* at = &object;
  while (!path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    const std::string name(path.substr(0, dot));
    if (!at->is_object() || !at->contains(name)) return nullptr;
    at = &at->at(name);
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return at;
}

std::optional<double> Number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<double> Value(const PlannedRun& run, const Json& row, const std::string& name) {
  for (const char* part : {"metrics", "sc_cost"}) {
    if (!row.contains(part)) continue;
    const Json* found = Find(row.at(part), name);
    if (found == nullptr) continue;
    if (found->is_number()) return found->get<double>();
    if (found->is_string()) return Number(found->get<std::string>());  // beyond 64 bits
  }
  for (const auto& [key, value] : run.parameters) {
    if (key == name) return Number(value);
  }
  return std::nullopt;
}

const PlannedRun& RunOf(const SweepPlan& plan, const Json& row) {
  const auto key = row.at("key").get<std::string>();
  return *std::find_if(plan.runs.begin(), plan.runs.end(), [&](const PlannedRun& run) { return run.key == key; });
}

bool LargeIsGood(const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  return has("same_top") || has("correlation") || has("sqnr") || has("cosine");
}

void AddNumbers(const std::string& name, const Json& value, std::vector<std::pair<std::string, std::string>>* to) {
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) AddNumbers(name.empty() ? key : name + "." + key, inner, to);
  } else if (value.is_number()) {
    to->emplace_back(name, value.dump());
  } else if (value.is_string() && Number(value.get<std::string>())) {
    to->emplace_back(name, value.get<std::string>());
  }
}

// The number, or an error that names what is allowed.
double NumberIn(const std::string& text, const std::string& part, const std::string& value, double low, double high) {
  const std::optional<double> number = Number(value);
  if (number && *number >= low && *number <= high) return *number;
  throw InvalidInput(fmt::format("--plot {}: {}={}: allowed is {:g} to {:g}", text, part, value, low, high));
}

// WxH.
void ParseSize(const std::string& text, const std::string& value, SweepPlot* plot) {
  constexpr double kLeastWidth = 240, kLeastHeight = 180, kMost = 4000;
  const size_t by = std::min(value.find('x'), value.size());
  const std::optional<double> width = Number(value.substr(0, by));
  const std::optional<double> height = by < value.size() ? Number(value.substr(by + 1)) : std::nullopt;
  if (!width || !height || *width < kLeastWidth || *height < kLeastHeight || *width > kMost || *height > kMost) {
    throw InvalidInput("--plot " + text + ": size=" + value + ": allowed is 240x180 to 4000x4000");
  }
  plot->width = *width;
  plot->height = *height;
}

}  // namespace

SweepPlot ParseSweepPlot(const std::string& text) {
  SweepPlot plot;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = std::min(part.find('='), part.size());
    const std::string name = part.substr(0, equals);
    const std::string value = equals < part.size() ? part.substr(equals + 1) : "";
    if (name == "x") {
      plot.x = value;
    } else if (name == "y") {
      plot.y = value;
    } else if (name == "file") {
      if (!value.ends_with(".svg"))
        throw InvalidInput("--plot " + text + ": file: expected NAME.svg, an SVG is written");
      plot.file = value;
    } else if (name == "log" && (value == "x" || value == "y" || value == "x+y")) {
      plot.x_logarithmic = value != "y";
      plot.y_logarithmic = value != "x";
    } else if (name == "error" && (value == "ci" || value == "sd" || value == "minmax")) {
      plot.spread = value == "ci"   ? SweepPlot::Spread::kInterval
                    : value == "sd" ? SweepPlot::Spread::kDeviation
                                    : SweepPlot::Spread::kExtremes;
    } else if (name == "kind" && value == "box") {
      plot.spread = SweepPlot::Spread::kBox;
    } else if (name == "baseline" && !value.empty()) {
      plot.baselines.push_back(value);
    } else if (name == "front" && (value == "0" || value == "1")) {
      plot.front = value == "1";
    } else if (name == "font") {
      plot.font = NumberIn(text, name, value, 6, 36);
    } else if (name == "size") {
      ParseSize(text, value, &plot);
    } else if (name == "by") {
      for (size_t from = 0; from <= value.size();) {
        const size_t to = std::min(value.find('+', from), value.size());
        plot.by.push_back(value.substr(from, to - from));
        from = to + 1;
      }
    } else {
      throw InvalidInput("--plot " + text + ": " + name +
                         ": allowed is x=NAME,y=NAME[,by=NAME+NAME][,log=x+y][,error=ci|sd|minmax][,kind=box]"
                         "[,baseline=VALUE|SERIES|CONFIG|KEY][,front=0|1][,size=WxH][,font=PT][,file=FILE]");
    }
  }
  if (plot.x.empty() || plot.y.empty()) throw InvalidInput("--plot " + text + ": takes x=NAME and y=NAME");
  return plot;
}

namespace {

// A sorted list's value at a share of its length, between neighbours by their distance.
double Quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  if (below + 1 >= sorted.size()) return sorted.back();
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[below + 1] - sorted[below]);
}

// The point of one configuration, from the values of its seeds in their order.
ChartPoint PointOf(const std::vector<double>& x, std::vector<double> y, SweepPlot::Spread kind,
                   const std::string& label) {
  const Summary of_y = Summarise(y);
  ChartPoint point{Summarise(x).mean, of_y.mean, label, {}};
  if (!of_y.sd) return point;  // one seed
  switch (kind) {
    case SweepPlot::Spread::kNone: break;
    case SweepPlot::Spread::kInterval: point.spread = {*of_y.ci95_low, *of_y.ci95_high}; break;
    case SweepPlot::Spread::kDeviation: point.spread = {of_y.mean - *of_y.sd, of_y.mean + *of_y.sd}; break;
    case SweepPlot::Spread::kExtremes: point.spread = {of_y.min, of_y.max}; break;
    case SweepPlot::Spread::kBox:
      std::sort(y.begin(), y.end());
      point.spread = {of_y.min, of_y.max, ChartSpread::Box{Quantile(y, 0.25), Quantile(y, 0.5), Quantile(y, 0.75)}};
      break;
  }
  return point;
}

std::string SeriesOf(const PlannedRun& run) {
  for (const auto& [name, value] : run.parameters) {
    if (name == "series") return value;
  }
  return "";
}

// The run that `baseline` names.
const PlannedRun& BaselineRun(const SweepPlan& plan, const std::string& baseline) {
  const auto found = std::find_if(plan.runs.begin(), plan.runs.end(), [&](const PlannedRun& run) {
    return run.config == baseline || SeriesOf(run) == baseline || run.key.starts_with(baseline);
  });
  if (found != plan.runs.end()) return *found;
  throw InvalidInput("--plot: baseline=" + baseline + ": allowed is a number, or the series, config or key of a run");
}

ChartBaseline BaselineOf(const SweepPlan& plan, const SweepPlot& plot, const std::string& baseline,
                         const std::vector<std::string>& rows) {
  if (const std::optional<double> number = Number(baseline)) return {*number, baseline};
  const PlannedRun& run = BaselineRun(plan, baseline);
  for (const std::string& text : rows) {
    const Json row = Json::parse(text);
    if (!row.contains("key") || row.at("key") != run.key) continue;
    if (const std::optional<double> y = Value(run, row, plot.y)) return {*y, baseline};
  }
  throw InvalidInput("--plot: baseline=" + baseline + ": its row has no " + plot.y);
}

// Values of x where it is a setting that has few.
std::vector<double> DiscreteValues(const SweepPlan& plan, const SweepPlot& plot, const Chart& chart) {
  constexpr size_t kMost = 16;
  const bool is_setting = plot.x == "layer" || std::any_of(plan.runs.begin(), plan.runs.end(), [&](const auto& run) {
                            return std::any_of(run.parameters.begin(), run.parameters.end(),
                                               [&](const auto& entry) { return entry.first == plot.x; });
                          });
  std::vector<double> values;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) values.push_back(point.x);
  }
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return is_setting && values.size() <= kMost ? values : std::vector<double>();
}

ScOperatorId OperatorNamed(const std::string& name) {
  for (int id = 0; id < kNumScOperators; ++id) {
    if (ScOperatorName(static_cast<ScOperatorId>(id)) == name) return static_cast<ScOperatorId>(id);
  }
  throw InvalidInput("--plot: a trace has the operator " + name + ", which no model has");
}

// Average lengths by layer, a line for each operator, of rows with traces.
std::vector<ChartSeries> LengthsByLayer(const SweepPlan& plan, const std::vector<std::string>& rows) {
  std::vector<ChartSeries> all;
  for (const std::string& text : rows) {
    const Json row = Json::parse(text);
    const Json* groups = row.contains("metrics") ? Find(row.at("metrics"), "trace.groups") : nullptr;
    if (groups == nullptr || groups->empty()) continue;
    const PlannedRun& run = RunOf(plan, row);
    std::map<ScOperatorId, std::map<int, std::pair<double, double>>> sums;  // by operator and layer: mac cycles, macs
    for (const Json& group : *groups) {
      const Json& value = group.at("macs");  // text beyond 64 bits
      const auto macs = Number(value.is_string() ? value.get<std::string>() : value.dump());
      if (!macs || group.at("block").is_null()) continue;
      auto& [cycles, count] = sums[OperatorNamed(group.at("op").get<std::string>())][group.at("block").get<int>()];
      cycles += *macs * group.at("stoc_len").get<double>();
      count += *macs;
    }
    const std::string prefix = SeriesOf(run).empty() ? "" : SeriesOf(run) + ": ";
    for (const auto& [op, layers] : sums) {
      ChartSeries& series =
          all.emplace_back(ChartSeries{.name = prefix + std::string(ScOperatorName(op)), .points = {}, .line = true});
      for (const auto& [layer, sum] : layers) {
        series.points.push_back({static_cast<double>(layer), sum.first / sum.second, run.config});
      }
    }
  }
  return all;
}

// Metrics and sc_cost that the row of a run will have, with other numbers.
Json ExampleRow(const SweepPlan& plan, const PlannedRun& run) {
  RunNumbers numbers;
  if (plan.Has("kl")) numbers.kl.emplace();
  if (run.engine.precision == Precision::kSc) numbers.cost.emplace().array_shape = plan.cost.array;
  Json row;
  AddMetrics(plan, numbers, &row);
  return row;
}

// Whether the row of a run may have a number of this name. What is within energy and sc_cost depends on the model.
bool MayHave(const PlannedRun& run, const Json& example, const std::string& name) {
  const bool in_sc = run.engine.precision == Precision::kSc;
  const std::string first = name.substr(0, name.find('.'));
  for (const char* part : {"metrics", "sc_cost"}) {
    const Json& values = example.at(part);
    const Json* found = Find(values, name);
    const bool is_average = in_sc && part == std::string_view("sc_cost");  // null, as nothing is counted yet
    if (found != nullptr && (found->is_number() || (found->is_null() && is_average))) return true;
    const Json* object = first == name || first == "kl" ? nullptr : Find(values, first);
    if (object != nullptr && object->is_object()) return true;
  }
  return std::any_of(run.parameters.begin(), run.parameters.end(),
                     [&](const auto& entry) { return entry.first == name && Number(entry.second); });
}

// Names of the settings by which runs differ, those with numbers or all.
std::string SettingNames(const SweepPlan& plan, bool numbers) {
  std::set<std::string> names;
  for (const PlannedRun& run : plan.runs) {
    for (const auto& [name, value] : run.parameters) {
      if (!numbers || Number(value)) names.insert(name);
    }
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

// Errors: InvalidInput where no row can have x, y or both.
void CheckAxes(const SweepPlan& plan, const SweepPlot& plot) {
  bool any_x = false, any_y = false, any_both = false;
  for (const PlannedRun& run : plan.runs) {
    const Json example = ExampleRow(plan, run);
    const bool x = MayHave(run, example, plot.x), y = MayHave(run, example, plot.y);
    any_x = any_x || x;
    any_y = any_y || y;
    any_both = any_both || (x && y);
  }
  if (any_both) return;
  if (any_x && any_y) throw InvalidInput("--plot: no row will have both " + plot.x + " and " + plot.y);
  throw InvalidInput(fmt::format(
      "--plot: {}: no row will have it: allowed are numbers of the plan's metrics ({}), as ppl or kl.kld.mean, of "
      "sc_cost, as mac_avg_stoc_len, and settings with numbers ({})",
      any_x ? "y=" + plot.y : "x=" + plot.x, fmt::join(plan.metrics, ", "), SettingNames(plan, true)));
}

}  // namespace

void CheckPlot(const SweepPlan& plan, const SweepPlot& plot) {
  if (plot.spread != SweepPlot::Spread::kNone && !plan.has_seeds) throw InvalidInput("--plot: the plan has no seeds");
  for (const std::string& by : plot.by) {
    const bool known = std::any_of(plan.runs.begin(), plan.runs.end(), [&](const PlannedRun& run) {
      return std::any_of(run.parameters.begin(), run.parameters.end(),
                         [&](const auto& entry) { return entry.first == by; });
    });
    if (known) continue;
    throw InvalidInput("--plot: by=" + by + ": no run has this setting: allowed are those of grid and runs (" +
                       SettingNames(plan, false) + ")");
  }
  if (plot.x == "layer" && (plot.y != "stoc_len" || !plan.Has("trace"))) {
    throw InvalidInput("--plot: x=layer goes with y=stoc_len and the metric trace");
  }
  if (plot.x != "layer") CheckAxes(plan, plot);
  for (const std::string& baseline : plot.baselines) {
    if (Number(baseline)) continue;
    const PlannedRun& run = BaselineRun(plan, baseline);
    if (plot.x != "layer" && !MayHave(run, ExampleRow(plan, run), plot.y)) {
      throw InvalidInput("--plot: baseline=" + baseline + ": its row will have no " + plot.y);
    }
  }
}

namespace {

// What rows say of one point.
struct PointValues {
  std::vector<double> x, y;
  const PlannedRun* run;
};

std::vector<PointValues> PointsOf(const SweepPlan& plan, const SweepPlot& plot, const std::vector<std::string>& rows) {
  const bool merges = plot.spread != SweepPlot::Spread::kNone;
  std::vector<PointValues> all;
  std::map<size_t, size_t> configurations;  // of merged ones, where their values are
  size_t hidden = 0;
  for (const std::string& text : rows) {
    const Json row = Json::parse(text);
    if (!row.contains("key")) continue;  // a summary
    const PlannedRun& run = RunOf(plan, row);
    const std::optional<double> x = Value(run, row, plot.x);
    const std::optional<double> y = Value(run, row, plot.y);
    if (!x || !y) continue;
    if (plot.x_logarithmic && *x == 0) {  // the rate 0, next to others
      ++hidden;
      continue;
    }
    const auto [at, is_new] = configurations.emplace(merges ? run.configuration : all.size(), all.size());
    if (is_new) all.push_back({{}, {}, &run});
    all[at->second].x.push_back(*x);
    all[at->second].y.push_back(*y);
  }
  if (hidden > 0) spdlog::warn("--plot: {} rows with {} = 0 have no place on a logarithmic axis", hidden, plot.x);
  return all;
}

std::vector<ChartSeries> SeriesOfPoints(const SweepPlan& plan, const SweepPlot& plot,
                                        const std::vector<PointValues>& all) {
  std::vector<ChartSeries> series;
  for (const PointValues& values : all) {
    const PlannedRun& run = *values.run;
    std::string name;
    for (const std::string& by : plot.by) {
      for (const auto& [key, value] : run.parameters) {
        if (key == by) name += (name.empty() ? "" : ", ") + (key == "series" ? value : key + " = " + value);
      }
    }
    const bool line = !name.empty();
    if (!line && !plot.by.empty()) name = "single runs";
    auto to = std::find_if(series.begin(), series.end(), [&](const ChartSeries& one) { return one.name == name; });
    if (to == series.end()) to = series.insert(series.end(), ChartSeries{.name = name, .points = {}});
    to->line = line && plot.spread != SweepPlot::Spread::kBox;
    const bool merges = plot.spread != SweepPlot::Spread::kNone;
    const std::string& label = merges ? plan.configurations[run.configuration] : run.config;
    to->points.push_back(PointOf(values.x, values.y, plot.spread, label));
  }
  for (ChartSeries& one : series) {
    if (!one.line) continue;
    std::stable_sort(one.points.begin(), one.points.end(),
                     [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
  }
  return series;
}

}  // namespace

std::string SweepSvg(const SweepPlan& plan, const SweepPlot& plot, const std::vector<std::string>& rows) {
  const bool by_layer = plot.x == "layer";
  Chart chart;
  chart.series = by_layer ? LengthsByLayer(plan, rows) : SeriesOfPoints(plan, plot, PointsOf(plan, plot, rows));
  if (chart.series.empty()) throw InvalidInput("--plot: no row has both " + plot.x + " and " + plot.y);
  chart.title = plan.model_name;
  chart.x_label = TitleOf(plot.x);
  chart.y_label = by_layer ? TitleOf("mac_avg_stoc_len") : TitleOf(plot.y);
  chart.x_logarithmic = plot.x_logarithmic;
  chart.y_logarithmic = plot.y_logarithmic;
  chart.pareto = plot.front && !by_layer && (plot.spread != SweepPlot::Spread::kNone || !plan.has_seeds);
  for (const std::string& baseline : plot.baselines) chart.baselines.push_back(BaselineOf(plan, plot, baseline, rows));
  chart.width = plot.width;
  chart.height = plot.height;
  chart.font = plot.font;
  chart.x_is_good = LargeIsGood(plot.x);
  chart.y_is_good = LargeIsGood(plot.y);
  chart.x_ticks = DiscreteValues(plan, plot, chart);
  UseEnergyPrefix(&chart);
  return ChartSvg(chart);
}

std::string SweepTsv(const SweepPlan& plan, const std::vector<std::string>& rows) {
  std::string table = "model\tconfig\tmetric\tvalue\n";
  for (const std::string& text : rows) {
    const Json row = Json::parse(text);
    std::vector<std::pair<std::string, std::string>> numbers;
    for (const char* part : {"metrics", "sc_cost"}) {
      if (row.contains(part)) AddNumbers("", row.at(part), &numbers);
    }
    for (const auto& [name, value] : numbers) {
      table += fmt::format("{}\t{}\t{}\t{}\n", plan.model_name, row.at("config").get<std::string>(), name, value);
    }
  }
  return table;
}

}  // namespace stoch::cli
