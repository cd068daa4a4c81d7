// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/plot/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "kernels/base/error.h"
#include "tools/stoch/plot/axis.h"
#include "tools/stoch/plot/svg.h"

namespace stoch::cli {
namespace {

// Told apart with every kind of colour vision, and in print without colours, where each is a grey of its own. The first
// four are of Okabe and Ito, Color Universal Design (2008).
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e7a30b", "#444444",
                                    "#4a9bc8", "#164c1a", "#b5d128", "#3b1150", "#84ddf1", "#0e0e43"};
constexpr size_t kNumColours = std::size(kColours);
constexpr const char* kGrid = "#e4e4e4";
constexpr const char* kFrame = "#444444";
constexpr const char* kBaseline = "#444444";
constexpr const char* kBaselineDashes[] = {"2 3", "7 3 2 3", "9 4"};

constexpr double kFont = 12;          // of the sizes below
constexpr double kLegendWidth = 130;  // of a legend next to the axes

class Drawing {
 public:
  explicit Drawing(const Chart& chart)
      : chart_(chart),
        all_(AllPoints(chart)),
        x_(AxisOf(&ChartPoint::x, chart.x_logarithmic, "x")),
        y_(AxisOf(&ChartPoint::y, chart.y_logarithmic, "y")),
        scale_(chart.font / kFont),
        left_(76 * scale_),
        top_(44 * scale_),
        bottom_(62 * scale_),
        right_(20 * scale_),
        svg_(chart.width + (IsCrowded(chart) ? kLegendWidth * scale_ : 0), chart.height) {}

  std::string Draw() {
    Axes();
    Baselines();
    if (chart_.pareto) Front();
    for (size_t i = 0; i < chart_.series.size(); ++i) Series(i);
    Legend();
    return svg_.Finish();
  }

 private:
  static std::vector<ChartPoint> AllPoints(const Chart& chart) {
    std::vector<ChartPoint> points;
    for (const ChartSeries& series : chart.series) {
      points.insert(points.end(), series.points.begin(), series.points.end());
    }
    if (points.empty()) throw InvalidInput("plot: there is no point to draw");
    return points;
  }
  Axis AxisOf(double ChartPoint::*value, bool logarithmic, const char* name) const {
    double low = all_[0].*value;
    double high = low;
    const auto include = [&](double number) {
      if (!std::isfinite(number) || (logarithmic && number <= 0)) {
        throw InvalidInput(
            fmt::format("plot: {} = {}: allowed is a finite number{}", name, number, logarithmic ? " above 0" : ""));
      }
      low = std::min(low, number);
      high = std::max(high, number);
    };
    for (const ChartPoint& point : all_) {
      include(point.*value);
      if (value != &ChartPoint::y || !point.spread) continue;
      include(point.spread->low);
      include(point.spread->high);
    }
    if (value == &ChartPoint::y) {
      for (const ChartBaseline& baseline : chart_.baselines) include(baseline.y);
    }
    return {low, high, logarithmic};
  }
  double X(double value) const { return left_ + x_.Position(value) * (chart_.width - left_ - right_); }
  double Y(double value) const {
    return chart_.height - bottom_ - y_.Position(value) * (chart_.height - top_ - bottom_);
  }

  void Axes() {
    const double bottom = chart_.height - bottom_, right = chart_.width - right_;
    double free = 0;  // where the next text of a tick may begin
    for (const Axis::Tick& tick : chart_.x_ticks.empty() ? x_.Ticks() : Axis::TicksAt(chart_.x_ticks)) {
      const double x = X(tick.value), half = SvgTextWidth(tick.text, chart_.font) / 2;
      svg_.Line(x, top_, x, bottom, kGrid);
      if (x - half < free) continue;
      free = x + half + 4 * scale_;
      svg_.Text(tick.text, {.x = x, .y = bottom + 18 * scale_, .anchor = SvgAnchor::kMiddle, .size = chart_.font});
    }
    for (const Axis::Tick& tick : y_.Ticks()) {
      const double y = Y(tick.value);
      svg_.Line(left_, y, right, y, kGrid);
      svg_.Text(tick.text,
                {.x = left_ - 8 * scale_, .y = y + 4 * scale_, .anchor = SvgAnchor::kEnd, .size = chart_.font});
    }
    svg_.Line(left_, top_, left_, bottom, kFrame);
    svg_.Line(left_, bottom, right, bottom, kFrame);
    const double middle = (left_ + right) / 2, label = 13 * scale_;
    svg_.Text(chart_.title,
              {.x = middle, .y = 26 * scale_, .anchor = SvgAnchor::kMiddle, .size = 15 * scale_, .bold = true});
    svg_.Text(chart_.x_label,
              {.x = middle, .y = chart_.height - 18 * scale_, .anchor = SvgAnchor::kMiddle, .size = label});
    svg_.Text(chart_.y_label,
              {.x = 20 * scale_, .y = (top_ + bottom) / 2, .anchor = SvgAnchor::kMiddle, .size = label, .turn = -90});
  }

  static const char* DashesOf(size_t baseline) { return kBaselineDashes[baseline % std::size(kBaselineDashes)]; }
  static const char* ColourOf(size_t series) { return kColours[series % kNumColours]; }

  // The baseline that has the name of a series, which is drawn and named with it, or nothing.
  std::optional<size_t> BaselineOf(const ChartSeries& series) const {
    for (size_t i = 0; i < chart_.baselines.size(); ++i) {
      if (!series.name.empty() && chart_.baselines[i].name == series.name) return i;
    }
    return std::nullopt;
  }

  void Baselines() {
    std::vector<const char*> colours(chart_.baselines.size(), kBaseline);
    for (size_t i = 0; i < chart_.series.size(); ++i) {
      if (const auto baseline = BaselineOf(chart_.series[i])) colours[*baseline] = ColourOf(i);
    }
    for (size_t i = 0; i < chart_.baselines.size(); ++i) {
      const double y = Y(chart_.baselines[i].y);
      svg_.Path({{left_, y}, {chart_.width - right_, y}}, colours[i], 1.5, DashesOf(i));
    }
  }

  void Front() {
    std::vector<std::pair<double, double>> path;
    for (const size_t i : ParetoFront(all_, chart_.x_is_good, chart_.y_is_good)) {
      path.emplace_back(X(all_[i].x), Y(all_[i].y));
    }
    svg_.Path(path, "#888888", 1.5, "5 4");
  }

  void Series(size_t index) {
    const ChartSeries& series = chart_.series[index];
    const char* colour = ColourOf(index);
    if (series.line) {
      std::vector<std::pair<double, double>> path;
      for (const ChartPoint& point : series.points) path.emplace_back(X(point.x), Y(point.y));
      svg_.Path(path, colour);
    }
    for (const ChartPoint& point : series.points) {
      if (point.spread) Spread(point, colour);
      if (!point.spread || !point.spread->box) {
        svg_.Marker(static_cast<int>(index), X(point.x), Y(point.y), colour, point.label);
      }
    }
  }

  void Spread(const ChartPoint& point, const char* colour) {
    constexpr double kCap = 4, kHalfBox = 7;
    const ChartSpread& spread = *point.spread;
    const double x = X(point.x);
    for (const double end : {spread.low, spread.high}) svg_.Line(x - kCap, Y(end), x + kCap, Y(end), colour, 1.2);
    if (!spread.box) return svg_.Line(x, Y(spread.low), x, Y(spread.high), colour, 1.2);
    svg_.Line(x, Y(spread.low), x, Y(spread.box->first), colour, 1.2);
    svg_.Line(x, Y(spread.box->third), x, Y(spread.high), colour, 1.2);
    const double left = x - kHalfBox, right = x + kHalfBox;
    const double top = Y(spread.box->third), bottom = Y(spread.box->first), median = Y(spread.box->median);
    svg_.Path({{left, top}, {right, top}, {right, bottom}, {left, bottom}, {left, top}}, colour, 1.2);
    svg_.Line(left, median, right, median, colour, 2);
  }

  // Next to the axes where they are many.
  static bool IsCrowded(const Chart& chart) {
    constexpr size_t kMostInside = 6;
    return chart.series.size() > kMostInside;
  }

  // A line of the legend: a name, its dashes where it is drawn by a line, and its marker where it has one.
  struct Entry {
    std::string name;
    const char* colour = kBaseline;
    std::optional<const char*> dashes = {};
    std::optional<int> marker = {};
  };

  std::vector<Entry> Entries() const {
    std::vector<Entry> entries;
    for (size_t i = 0; i < chart_.series.size(); ++i) {
      const ChartSeries& series = chart_.series[i];
      Entry& entry = entries.emplace_back(Entry{series.name, ColourOf(i), {}, static_cast<int>(i)});
      if (series.line && series.points.size() > 1) entry.dashes = "";
      if (const auto baseline = BaselineOf(series)) entry.dashes = DashesOf(*baseline);
    }
    if (entries.size() == 1 && entries[0].name.empty()) entries.clear();
    if (chart_.pareto) entries.push_back({"Pareto front", "#888888", "5 4", {}});
    for (size_t i = 0; i < chart_.baselines.size(); ++i) {
      const std::string& name = chart_.baselines[i].name;
      const bool is_series = std::any_of(entries.begin(), entries.end(),
                                         [&](const Entry& entry) { return entry.marker && entry.name == name; });
      if (!is_series) entries.push_back({name, kBaseline, DashesOf(i), {}});
    }
    return entries;
  }

  // In the corner that has the fewest points and bars below it, or next to the axes: its top left.
  std::pair<double, double> LegendPlace(double width, double height) const {
    if (IsCrowded(chart_)) return {chart_.width - right_ + 12 * scale_, top_};
    const double lefts[] = {chart_.width - right_ - width - 6, left_ + 8};
    const double tops[] = {top_ + 6, chart_.height - bottom_ - height - 8};
    std::pair<double, double> place{lefts[0], tops[0]};
    size_t fewest = all_.size() + 1;
    for (const double y : tops) {
      for (const double x : lefts) {
        const auto covered = static_cast<size_t>(std::count_if(all_.begin(), all_.end(), [&](const ChartPoint& point) {
          const double top = Y(point.spread ? point.spread->high : point.y);
          const double bottom = Y(point.spread ? point.spread->low : point.y);
          return X(point.x) > x - 6 && X(point.x) < x + width + 6 && bottom > y - 6 && top < y + height + 6;
        }));
        if (covered >= fewest) continue;
        fewest = covered;
        place = {x, y};
      }
    }
    return place;
  }

  void Legend() {
    const std::vector<Entry> entries = Entries();
    if (entries.empty()) return;
    const double row = 18 * scale_;
    double width = 0;
    for (const Entry& entry : entries) width = std::max(width, SvgTextWidth(entry.name, chart_.font));
    width += 40 * scale_;
    const double height = row * static_cast<double>(entries.size()) + 8;
    const auto [left, top] = LegendPlace(width, height);
    svg_.Rect(left, top, width, height, "#ffffff");
    for (size_t i = 0; i < entries.size(); ++i) {
      const double y = top + row * static_cast<double>(i) + 15 * scale_, middle = y - 4 * scale_;
      const double begin = left + 4 * scale_, end = left + 28 * scale_;
      const Entry& entry = entries[i];
      if (entry.dashes) svg_.Line(begin, middle, end, middle, entry.colour, 1.5, *entry.dashes);
      if (entry.marker) svg_.Marker(*entry.marker, (begin + end) / 2, middle, entry.colour);
      svg_.Text(entry.name, {.x = left + 34 * scale_, .y = y, .size = chart_.font});
    }
  }

  const Chart& chart_;
  std::vector<ChartPoint> all_;
  Axis x_, y_;
  double scale_;  // of the font, and of margins with it
  double left_, top_, bottom_, right_;
  Svg svg_;
};

}  // namespace

std::vector<size_t> ParetoFront(const std::vector<ChartPoint>& points, bool x_is_good, bool y_is_good) {
  const auto x = [&](size_t i) { return x_is_good ? -points[i].x : points[i].x; };
  const auto y = [&](size_t i) { return y_is_good ? -points[i].y : points[i].y; };
  std::vector<size_t> front;
  for (size_t i = 0; i < points.size(); ++i) {
    bool beaten = false;
    for (size_t j = 0; j < points.size() && !beaten; ++j) {
      beaten = x(j) <= x(i) && y(j) <= y(i) && (x(j) < x(i) || y(j) < y(i));
    }
    if (!beaten) front.push_back(i);
  }
  std::stable_sort(front.begin(), front.end(), [&](size_t a, size_t b) {
    return points[a].x != points[b].x ? points[a].x < points[b].x : points[a].y < points[b].y;
  });
  return front;
}

std::string ChartSvg(const Chart& chart) { return Drawing(chart).Draw(); }

}  // namespace stoch::cli
