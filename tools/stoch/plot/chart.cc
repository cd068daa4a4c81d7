// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/plot/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/error.h"
#include "tools/stoch/plot/axis.h"
#include "tools/stoch/plot/svg.h"

namespace stoch::cli {
namespace {

// Told apart with every kind of colour vision. Source: Okabe and Ito, Color Universal Design (2008).
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444"};
constexpr size_t kNumColours = std::size(kColours);
constexpr const char* kGrid = "#e4e4e4";
constexpr const char* kFrame = "#444444";
constexpr const char* kBaseline = "#444444";
constexpr const char* kBaselineDashes = "2 3";

constexpr double kLegendWidth = 130;  // of a legend next to the axes
constexpr double kLeft = 76, kTop = 44, kBottom = 62, kRight = 20;

class Drawing {
 public:
  explicit Drawing(const Chart& chart)
      : chart_(chart),
        all_(AllPoints(chart)),
        x_(AxisOf(&ChartPoint::x, chart.x_logarithmic, "x")),
        y_(AxisOf(&ChartPoint::y, chart.y_logarithmic, "y")),
        svg_(chart.width + (IsCrowded(chart) ? kLegendWidth : 0), chart.height) {}

  std::string Draw() {
    Axes();
    if (chart_.baseline) Baseline();
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
    if (value == &ChartPoint::y && chart_.baseline) include(chart_.baseline->y);
    return {low, high, logarithmic};
  }
  double X(double value) const { return kLeft + x_.Position(value) * (chart_.width - kLeft - kRight); }
  double Y(double value) const {
    return chart_.height - kBottom - y_.Position(value) * (chart_.height - kTop - kBottom);
  }

  void Axes() {
    const double bottom = chart_.height - kBottom;
    for (const Axis::Tick& tick : x_.Ticks()) {
      svg_.Line(X(tick.value), kTop, X(tick.value), bottom, kGrid);
      svg_.Text(tick.text, {.x = X(tick.value), .y = bottom + 18, .anchor = SvgAnchor::kMiddle});
    }
    for (const Axis::Tick& tick : y_.Ticks()) {
      svg_.Line(kLeft, Y(tick.value), chart_.width - kRight, Y(tick.value), kGrid);
      svg_.Text(tick.text, {.x = kLeft - 8, .y = Y(tick.value) + 4, .anchor = SvgAnchor::kEnd});
    }
    svg_.Line(kLeft, kTop, kLeft, bottom, kFrame);
    svg_.Line(kLeft, bottom, chart_.width - kRight, bottom, kFrame);
    const double middle = (kLeft + chart_.width - kRight) / 2;
    svg_.Text(chart_.title, {.x = middle, .y = 26, .anchor = SvgAnchor::kMiddle, .size = 15, .bold = true});
    svg_.Text(chart_.x_label, {.x = middle, .y = chart_.height - 18, .anchor = SvgAnchor::kMiddle, .size = 13});
    svg_.Text(chart_.y_label,
              {.x = 20, .y = (kTop + bottom) / 2, .anchor = SvgAnchor::kMiddle, .size = 13, .turn = -90});
  }

  void Baseline() {
    const double y = Y(chart_.baseline->y);
    svg_.Path({{kLeft, y}, {chart_.width - kRight, y}}, kBaseline, 1.5, kBaselineDashes);
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
    const char* colour = kColours[index % kNumColours];
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

  // In the corner that has the fewest points below it, or next to the axes.
  void Legend() {
    std::vector<std::string> names;
    for (const ChartSeries& series : chart_.series) names.push_back(series.name);
    if (names.size() == 1 && names[0].empty()) names.clear();
    const size_t of_series = names.size();
    if (chart_.pareto) names.emplace_back("Pareto front");
    const size_t of_lines = names.size();
    if (chart_.baseline) names.push_back(chart_.baseline->name);
    if (names.empty()) return;
    constexpr double kRow = 18;
    double width = 0;
    for (const std::string& name : names) width = std::max(width, SvgTextWidth(name, 12));
    width += 40;
    const double height = kRow * static_cast<double>(names.size()) + 8;
    const double lefts[] = {chart_.width - kRight - width - 6, kLeft + 8};
    const double tops[] = {kTop + 6, chart_.height - kBottom - height - 8};
    double left = lefts[0];
    double top = tops[0];
    size_t fewest = all_.size() + 1;
    for (const double y : tops) {
      for (const double x : lefts) {
        const auto covered = static_cast<size_t>(std::count_if(all_.begin(), all_.end(), [&](const ChartPoint& point) {
          return X(point.x) > x - 6 && X(point.x) < x + width + 6 && Y(point.y) > y - 6 && Y(point.y) < y + height + 6;
        }));
        if (covered >= fewest) continue;
        fewest = covered;
        left = x;
        top = y;
      }
    }
    if (IsCrowded(chart_)) {
      left = chart_.width - kRight + 12;
      top = kTop;
    }
    svg_.Rect(left, top, width, height, "#ffffff");
    for (size_t i = 0; i < names.size(); ++i) {
      const double y = top + kRow * static_cast<double>(i) + 15;
      if (i < of_series) {
        const char* colour = kColours[i % kNumColours];
        if (chart_.series[i].line) svg_.Line(left + 4, y - 4, left + 28, y - 4, colour, 1.5);
        svg_.Marker(static_cast<int>(i), left + 16, y - 4, colour);
      } else if (i < of_lines) {
        svg_.Line(left + 4, y - 4, left + 28, y - 4, "#888888", 1.5, "5 4");
      } else {
        svg_.Line(left + 4, y - 4, left + 28, y - 4, kBaseline, 1.5, kBaselineDashes);
      }
      svg_.Text(names[i], {.x = left + 34, .y = y});
    }
  }

  const Chart& chart_;
  std::vector<ChartPoint> all_;
  Axis x_, y_;
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
