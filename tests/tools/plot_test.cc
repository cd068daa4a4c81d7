// SPDX-License-Identifier: Apache-2.0
// Figures: ticks, the Pareto front, and SVG that stands alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "tests/support/expect_invalid.h"
#include "tools/stoch/plot/axis.h"
#include "tools/stoch/plot/chart.h"
#include "tools/stoch/plot/heat_map.h"
#include "tools/stoch/research/plot_titles.h"

namespace stoch::cli {
namespace {

using test::ExpectInvalid;

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Every element is closed, in order, and nothing refers to another file.
void ExpectStandsAlone(const std::string& svg) {
  EXPECT_EQ(svg.rfind("<svg xmlns=\"http://www.w3.org/2000/svg\"", 0), 0u);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  EXPECT_EQ(Count(svg, "<text "), Count(svg, "</text>"));
  EXPECT_EQ(Count(svg, "<title>"), Count(svg, "</title>"));
  EXPECT_EQ(Count(svg, "http"), 1);
  EXPECT_EQ(Count(svg, "nan"), 0);
  EXPECT_EQ(Count(svg, "inf"), 0);
  EXPECT_EQ(Count(svg, "href"), 0);
}

TEST(Plot, TicksAreRoundAndInside) {
  const Axis linear(3.1, 97.0, false);
  std::vector<std::string> texts;
  for (const Axis::Tick& tick : linear.Ticks()) {
    EXPECT_GE(linear.Position(tick.value), 0);
    EXPECT_LE(linear.Position(tick.value), 1);
    texts.push_back(tick.text);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"0", "20", "40", "60", "80", "100"}));
  texts.clear();
  for (const Axis::Tick& tick : Axis(16, 256, true).Ticks()) texts.push_back(tick.text);
  EXPECT_EQ(texts, (std::vector<std::string>{"20", "50", "100", "200"}));
  texts.clear();
  for (const Axis::Tick& tick : Axis(6.612, 6.64, false).Ticks()) texts.push_back(tick.text);
  EXPECT_EQ(texts.front(), "6.615");
  EXPECT_GE(Axis(5, 5, false).Ticks().size(), 2u);
  EXPECT_NEAR(linear.Position(50.05), 0.5, 1e-12);
}

TEST(Plot, FrontKeepsWhatNothingBeats) {
  const std::vector<ChartPoint> points = {{3, 1}, {1, 3}, {2, 2}, {3, 3}, {2, 2}, {1, 4}, {4, 1}};
  EXPECT_EQ(ParetoFront(points), (std::vector<size_t>{1, 2, 4, 0}));
  EXPECT_EQ(ParetoFront(points, true, false), (std::vector<size_t>{6}));
  EXPECT_EQ(ParetoFront(points, false, true), (std::vector<size_t>{5}));
  EXPECT_EQ(ParetoFront({}), std::vector<size_t>{});
}

TEST(Plot, SpreadsAreDrawnAndInsideOfTheAxes) {
  Chart chart;
  chart.series = {
      {"runs", {{1, 5, "one", ChartSpread{3, 9}}, {2, 6, "box", ChartSpread{4, 8, ChartSpread::Box{5, 6, 7}}}}}};
  const std::string svg = ChartSvg(chart);
  ExpectStandsAlone(svg);
  chart.series[0].points[0].spread.reset();
  const std::string without = ChartSvg(chart);
  EXPECT_EQ(Count(svg, "<line") - Count(without, "<line"), 3 + 2);  // a bar with its ends, and the grid at 3 and 9
  for (const char* tick : {">3<", ">9<"}) {
    EXPECT_EQ(Count(svg, tick), 1) << tick;
    EXPECT_EQ(Count(without, tick), 0) << tick;
  }
  EXPECT_EQ(Count(svg, "<circle"), 2);  // a point and the legend: a box has no marker
  chart.y_logarithmic = true;
  chart.series[0].points[1].spread->low = -1;
  ExpectInvalid([&] { ChartSvg(chart); }, {"above 0"});
}

TEST(Plot, ABaselineIsALevelInsideOfTheAxesAndSizesAreThoseGiven) {
  Chart chart;
  chart.series = {{"", {{1, 5}, {2, 6}}}};
  const std::string without = ChartSvg(chart);
  chart.baselines = {{9, "fp32"}};
  const std::string svg = ChartSvg(chart);
  ExpectStandsAlone(svg);
  EXPECT_EQ(Count(svg, "stroke-dasharray=\"2 3\""), 2) << "the line and the legend's";
  EXPECT_EQ(Count(svg, ">fp32<"), 1);
  EXPECT_EQ(Count(svg, ">9<"), 1);
  EXPECT_EQ(Count(without, ">9<"), 0);
  chart.width = 300;
  chart.height = 200;
  const std::string small = ChartSvg(chart);
  EXPECT_EQ(Count(small, "viewBox=\"0 0 300 200\""), 1) << small.substr(0, 200);
  EXPECT_EQ(Count(svg, "viewBox=\"0 0 640 420\""), 1);
  chart.y_logarithmic = true;
  chart.baselines[0].y = 0;
  ExpectInvalid([&] { ChartSvg(chart); }, {"above 0"});
}

TEST(Plot, EveryBaselineHasDashesOfItsOwn) {
  Chart chart;
  chart.series = {{"", {{1, 5}, {2, 6}}}};
  chart.baselines = {{9, "exact"}, {8, "int8"}};
  const std::string svg = ChartSvg(chart);
  EXPECT_EQ(Count(svg, "stroke-dasharray=\"2 3\""), 2);
  EXPECT_EQ(Count(svg, "stroke-dasharray=\"7 3 2 3\""), 2);
  EXPECT_EQ(Count(svg, ">exact<") + Count(svg, ">int8<"), 2);
}

TEST(Plot, ABaselineNamedAsASeriesIsDrawnAndNamedWithIt) {
  Chart chart;
  chart.series = {{"int8", {{1, 5}}, true}, {"sc", {{1, 6}, {2, 7}}, true}};
  chart.baselines = {{9, "exact"}, {5, "int8"}};
  const std::string svg = ChartSvg(chart);
  EXPECT_EQ(Count(svg, ">int8<"), 1);
  EXPECT_EQ(Count(svg, ">exact<"), 1);
  EXPECT_EQ(Count(svg, "stroke-dasharray=\"7 3 2 3\""), 2) << "the line and the legend's";
  const auto level = [](const std::string& colour, const std::string& dashes) {
    return "stroke=\"" + colour + "\" stroke-width=\"1.50\" stroke-linejoin=\"round\" stroke-dasharray=\"" + dashes +
           '"';
  };
  EXPECT_EQ(Count(svg, level("#0072b2", "7 3 2 3")), 1) << "in the colour of its series";
  EXPECT_EQ(Count(svg, level("#444444", "2 3")), 1);
}

TEST(Plot, EnergiesHaveTheirLargestPrefix) {
  Chart chart;
  chart.x_label = "energy (pJ)";
  chart.y_label = "0.qk: energy (pJ)";
  chart.series = {{"", {{2.5e9, 300}, {1.25e10, 999, "", ChartSpread{250, 999}}}}};
  chart.baselines = {{500, "exact"}};
  UseEnergyPrefix(&chart);
  EXPECT_EQ(chart.x_label, "energy (mJ)");
  EXPECT_EQ(chart.series[0].points[0].x, 2.5);
  EXPECT_EQ(chart.series[0].points[1].x, 12.5);
  EXPECT_EQ(chart.y_label, "0.qk: energy (pJ)") << "below 1 nJ";
  EXPECT_EQ(chart.series[0].points[1].spread->low, 250);
  chart.series[0].points[1].spread->high = 2000;
  UseEnergyPrefix(&chart);
  EXPECT_EQ(chart.y_label, "0.qk: energy (nJ)");
  EXPECT_EQ(chart.series[0].points[0].y, 0.3);
  EXPECT_EQ(chart.series[0].points[1].spread->low, 0.25);
  EXPECT_EQ(chart.baselines[0].y, 0.5);
  EXPECT_EQ(chart.series[0].points[0].x, 2.5) << "once";
}

TEST(Plot, LegendsCoverNoBars) {
  Chart chart;
  chart.series = {{"a series", {{1, 1}, {2, 1}, {9, 1}, {10, 1, "", ChartSpread{0, 10}}}}};
  const std::string svg = ChartSvg(chart);
  // Next to the left axis: the bar is at the right, from the bottom to the top.
  EXPECT_EQ(Count(svg, "<text x=\"118.00\""), 1) << svg;
  chart.series[0].points[3].spread.reset();
  EXPECT_EQ(Count(ChartSvg(chart), "<text x=\"118.00\""), 0) << "no bar";
}

TEST(Plot, TicksMayBeGivenAndFontsHaveTheirSize) {
  Chart chart;
  chart.x_label = "stream length (cycles)";
  chart.series = {{"", {{16, 5}, {32, 6}, {33, 6}, {256, 4}}}};
  chart.x_ticks = {256, 16, 32, 33};
  const std::string svg = ChartSvg(chart);
  for (const char* tick : {">16<", ">32<", ">256<"}) EXPECT_EQ(Count(svg, tick), 1) << tick;
  EXPECT_EQ(Count(svg, ">33<"), 0) << "no room next to 32";
  EXPECT_EQ(Count(svg, ">50<"), 0);
  EXPECT_EQ(Count(svg, "font-size=\"12.00\""), Count(svg, "<text ") - 3) << "all but the title and two labels";
  chart.font = 24;
  const std::string large = ChartSvg(chart);
  EXPECT_EQ(Count(large, "font-size=\"26.00\""), 2);
  EXPECT_EQ(Count(large, "font-size=\"12.00\""), 0);
}

TEST(Plot, TwelveSeriesDifferInGrey) {
  Chart chart;
  for (int i = 0; i < 12; ++i) chart.series.push_back({std::to_string(i), {{1.0 * i, 1.0 * i}}});
  const std::string svg = ChartSvg(chart);
  std::vector<double> greys;
  for (size_t at = 0; (at = svg.find("fill=\"#", at)) != std::string::npos; ++at) {
    const std::string colour = svg.substr(at + 7, 6);
    if (colour == "ffffff" || colour == "222222") continue;  // the ground, texts
    const int rgb = std::stoi(colour, nullptr, 16);
    const double grey = 0.299 * (rgb >> 16) + 0.587 * (rgb >> 8 & 255) + 0.114 * (rgb & 255);
    if (std::find(greys.begin(), greys.end(), grey) == greys.end()) greys.push_back(grey);
  }
  ASSERT_EQ(greys.size(), 12u);
  std::sort(greys.begin(), greys.end());
  for (size_t i = 1; i < greys.size(); ++i) EXPECT_GT(greys[i] - greys[i - 1], 12.0) << i;
}

TEST(Plot, ChartHasWhatItIsGiven) {
  Chart chart;
  chart.title = "a < b & \"c\"";
  chart.x_label = "cycles";
  chart.y_label = "perplexity";
  chart.series = {{"uniform", {{32, 9}, {64, 7, "L = 64"}, {128, 6.5}}, true}, {"mixed", {{48, 7.2}}, false}};
  chart.pareto = true;
  const std::string svg = ChartSvg(chart);
  ExpectStandsAlone(svg);
  EXPECT_EQ(Count(svg, "a &lt; b &amp; &quot;c&quot;"), 1);
  EXPECT_EQ(Count(svg, "<title>L = 64</title>"), 1);
  EXPECT_EQ(Count(svg, "<circle"), 4);   // three points and the legend
  EXPECT_EQ(Count(svg, "<polygon"), 2);  // one point and the legend
  EXPECT_EQ(Count(svg, ">Pareto front<"), 1);
  EXPECT_EQ(svg, ChartSvg(chart));
  chart.pareto = false;
  EXPECT_EQ(Count(ChartSvg(chart), "Pareto"), 0);
  ExpectInvalid([] { ChartSvg({}); }, {"no point"});
  chart.series[0].points[0].y = std::numeric_limits<double>::quiet_NaN();
  ExpectInvalid([&] { ChartSvg(chart); }, {"finite"});
  chart.series[0].points[0].y = -1;
  chart.y_logarithmic = true;
  ExpectInvalid([&] { ChartSvg(chart); }, {"above 0"});
}

TEST(Plot, HeatMapHasACellForEveryValue) {
  HeatMap map;
  map.title = "mse";
  map.rows = {"0", "1"};
  map.columns = {"q_proj", "av"};
  map.values = {1e-4, 2e-3, std::nullopt, 1e-1};
  map.logarithmic = true;
  const std::string svg = HeatMapSvg(map);
  ExpectStandsAlone(svg);
  EXPECT_EQ(Count(svg, "<title>"), 4);
  EXPECT_EQ(Count(svg, "<title>1, q_proj: none</title>"), 1);
  EXPECT_EQ(Count(svg, "#440154"), 1);  // the least value
  EXPECT_EQ(Count(svg, "#fde725"), 1);  // the largest
  EXPECT_EQ(Count(svg, "#dddddd"), 1);
  map.values[0] = 0.0;
  ExpectInvalid([&] { HeatMapSvg(map); }, {"above 0"});
  map.values.pop_back();
  ExpectInvalid([&] { HeatMapSvg(map); }, {"3 values"});
  map.values = {std::nullopt, std::nullopt, std::nullopt, std::nullopt};
  ExpectInvalid([&] { HeatMapSvg(map); }, {"no value"});
}

}  // namespace
}  // namespace stoch::cli
