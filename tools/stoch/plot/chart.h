// SPDX-License-Identifier: Apache-2.0
// Points and lines over two axes, with a Pareto front.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace stoch::cli {

// What is drawn up and down from a point: an interval, or a box of quartiles with whiskers at its ends.
struct ChartSpread {
  double low = 0, high = 0;
  struct Box {
    double first = 0, median = 0, third = 0;
  };
  std::optional<Box> box = {};
};

struct ChartPoint {
  double x = 0, y = 0;
  std::string label = {};                  // shown on hovering
  std::optional<ChartSpread> spread = {};  // of y
};

struct ChartSeries {
  std::string name;  // of the legend
  std::vector<ChartPoint> points;
  bool line = false;  // joins the points in their order
};

// A level across the chart, as that of an exact run. One that is named as a series has its colour and its line of the legend.
struct ChartBaseline {
  double y = 0;
  std::string name;  // of the legend
};

struct Chart {
  std::string title, x_label, y_label;
  double width = 640, height = 420;  // points; a legend next to the axes comes on top. 240 and 180 at least
  double font = 12;                  // points, of ticks and the legend; titles are larger
  std::vector<double> x_ticks = {};  // where ticks are in place of round values; empty: round values
  std::vector<ChartBaseline> baselines = {};
  bool x_logarithmic = false, y_logarithmic = false;
  std::vector<ChartSeries> series;
  bool pareto = false;                        // of all points: small x and small y are good
  bool x_is_good = false, y_is_good = false;  // of the front: large values are good
};

// Indices of the points that no other beats in one value without losing in the other, by x ascending, then y, then
// index; of equal points all.
std::vector<size_t> ParetoFront(const std::vector<ChartPoint>& points, bool x_is_good = false, bool y_is_good = false);

// Bits:   the same text for the same chart.
// Errors: InvalidInput where there is no point, a value is not finite, or not above 0 on a logarithmic axis.
std::string ChartSvg(const Chart& chart);

}  // namespace stoch::cli
