// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/plot/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/error.h"
#include "tools/stoch/plot/axis.h"
#include "tools/stoch/plot/svg.h"

namespace stoch::cli {
namespace {

// Even in lightness, so that it survives grey printing. Source: nine samples of viridis (matplotlib, CC0).
constexpr std::array<std::array<int, 3>, 9> kRamp = {{{68, 1, 84},
                                                      {71, 44, 122},
                                                      {59, 81, 139},
                                                      {44, 113, 142},
                                                      {33, 144, 141},
                                                      {39, 173, 129},
                                                      {92, 200, 99},
                                                      {170, 220, 50},
                                                      {253, 231, 37}}};

std::string Colour(double share) {
  const double at = std::clamp(share, 0.0, 1.0) * static_cast<double>(kRamp.size() - 1);
  const size_t low = std::min(static_cast<size_t>(at), kRamp.size() - 2);
  const double part = at - static_cast<double>(low);
  std::string text = "#";
  for (size_t i = 0; i < 3; ++i) {
    const double value = kRamp[low][i] + part * (kRamp[low + 1][i] - kRamp[low][i]);
    text += fmt::format("{:02x}", static_cast<int>(std::lround(value)));
  }
  return text;
}

void Check(const HeatMap& map) {
  if (map.values.size() != map.rows.size() * map.columns.size()) {
    throw InvalidInput(fmt::format("plot: {} values for {} rows and {} columns", map.values.size(), map.rows.size(),
                                   map.columns.size()));
  }
  for (const std::optional<double>& value : map.values) {
    if (!value || (std::isfinite(*value) && (!map.logarithmic || *value > 0))) continue;
    throw InvalidInput(
        fmt::format("plot: value {}: allowed is a finite number{}", *value, map.logarithmic ? " above 0" : ""));
  }
}

double WidestText(const std::vector<std::string>& texts, double size) {
  double width = 0;
  for (const std::string& text : texts) width = std::max(width, SvgTextWidth(text, size));
  return width;
}

}  // namespace

std::string HeatMapSvg(const HeatMap& map) {
  Check(map);
  double low = 0;
  double high = 0;
  bool any = false;
  for (const std::optional<double>& value : map.values) {
    if (!value) continue;
    low = any ? std::min(low, *value) : *value;
    high = any ? std::max(high, *value) : *value;
    any = true;
  }
  if (!any) throw InvalidInput("plot: there is no value to draw");
  const auto mapped = [&](double value) { return map.logarithmic ? std::log10(value) : value; };
  const double range = mapped(high) - mapped(low);
  const auto share = [&](double value) { return range > 0 ? (mapped(value) - mapped(low)) / range : 0.5; };

  constexpr double kText = 12;
  const double columns = static_cast<double>(map.columns.size());
  const double rows = static_cast<double>(map.rows.size());
  const double cell_width = std::clamp(WidestText(map.columns, kText) + 8, 34.0, 84.0);
  const double cell_height = rows > 40 ? 12 : 22;
  const double left = 44 + WidestText(map.rows, kText);
  constexpr double kTop = 50;
  const double right = left + columns * cell_width;
  const double bottom = kTop + rows * cell_height;
  const double height = std::max(bottom, kTop + 120) + 58;
  Svg svg(right + 110, height);

  svg.Text(map.title, {.x = (left + right) / 2, .y = 26, .anchor = SvgAnchor::kMiddle, .size = 15, .bold = true});
  for (size_t row = 0; row < map.rows.size(); ++row) {
    const double y = kTop + static_cast<double>(row) * cell_height;
    svg.Text(
        map.rows[row],
        {.x = left - 6, .y = y + cell_height / 2 + 4, .anchor = SvgAnchor::kEnd, .size = std::min(kText, cell_height)});
    for (size_t column = 0; column < map.columns.size(); ++column) {
      const std::optional<double>& value = map.values[row * map.columns.size() + column];
      const std::string what =
          fmt::format("{}, {}: {}", map.rows[row], map.columns[column], value ? fmt::format("{:.4g}", *value) : "none");
      svg.Rect(left + static_cast<double>(column) * cell_width, y, cell_width - 1, cell_height - 1,
               value ? Colour(share(*value)) : "#dddddd", what);
    }
  }
  for (size_t column = 0; column < map.columns.size(); ++column) {
    svg.Text(
        map.columns[column],
        {.x = left + (static_cast<double>(column) + 0.5) * cell_width, .y = bottom + 16, .anchor = SvgAnchor::kMiddle});
  }
  svg.Text(map.x_label, {.x = (left + right) / 2, .y = bottom + 40, .anchor = SvgAnchor::kMiddle, .size = 13});
  svg.Text(map.y_label, {.x = 18, .y = (kTop + bottom) / 2, .anchor = SvgAnchor::kMiddle, .size = 13, .turn = -90});

  // The colour bar, with ticks where the axis would have them.
  constexpr int kSteps = 32;
  const double bar_height = std::max(bottom - kTop, 120.0);
  const double bar_left = right + 20;
  for (int i = 0; i < kSteps; ++i) {
    const double y = kTop + bar_height * (kSteps - 1 - i) / kSteps;
    svg.Rect(bar_left, y, 14, bar_height / kSteps + 0.5, Colour((i + 0.5) / kSteps));
  }
  const auto tick = [&](double value, const std::string& text) {
    const double y = kTop + bar_height * (1 - share(value));
    svg.Line(bar_left + 14, y, bar_left + 18, y, "#444444");
    svg.Text(text, {.x = bar_left + 22, .y = y + 4, .size = 11});
  };
  if (range > 0) {
    for (const Axis::Tick& at : Axis(low, high, map.logarithmic).Ticks()) {
      if (at.value >= low && at.value <= high) tick(at.value, at.text);
    }
  } else {
    tick(low, fmt::format("{:.4g}", low));
  }
  svg.Text(map.value_label, {.x = bar_left, .y = kTop - 8, .size = 11});
  return svg.Finish();
}

}  // namespace stoch::cli
