// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/research/plot_titles.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>

namespace stoch::cli {
namespace {

// Titles of axes by the names of what is drawn, with their units.
constexpr std::pair<std::string_view, std::string_view> kTitles[] = {
    {"ppl", "perplexity"},
    {"mean_nll", "mean negative log-likelihood (nats)"},
    {"kl.kld.mean", "mean KL divergence from the exact model (nats)"},
    {"kl.same_top.mean", "predictions with the exact model's likeliest token (share)"},
    {"energy.total", "energy (pJ)"},
    {"cycles", "cycles of the array"},
    {"mac_avg_stoc_len", "average stream length (cycles)"},
    {"mac_avg_stoc_len_linears", "average stream length of linears (cycles)"},
    {"mac_avg_stoc_len_attention", "average stream length of attention (cycles)"},
    {"mac_cycles", "macs times stream length (cycles)"},
    {"dram_read_bytes", "read from DRAM (bytes)"},
    {"stoc_len", "stream length (cycles)"},
    {"layer", "layer"},
    {"sc_prec", "precision (bits)"},
    {"acc_bits", "register of an accumulator (bits)"},
    {"acc_group", "dimensions after which the register is looked at"},
    {"adder_group", "inputs of an adder"},
    {"fault_product", "rate of flipped bits of products"},
    {"fault_weight", "rate of flipped bits of stored codes"},
    {"fault_activation", "rate of flipped bits of activations"},
    {"fault_acc", "rate of flipped bits of accumulators"}};

constexpr std::string_view kPicojoules = "(pJ)";

struct Prefix {
  const char* unit;
  double picojoules;
};
constexpr Prefix kPrefixes[] = {{"(J)", 1e12}, {"(mJ)", 1e9}, {"(\u00b5J)", 1e6}, {"(nJ)", 1e3}};

// Divides what `value` points to in every point and level, and names the unit, where the title is of energy.
template <typename Visit>
void UsePrefix(std::string* title, const Visit& visit) {
  const size_t at = title->rfind(kPicojoules);
  if (at == std::string::npos) return;
  double largest = 0;
  visit([&](double& value) { largest = std::max(largest, std::abs(value)); });
  for (const Prefix& prefix : kPrefixes) {
    if (largest < prefix.picojoules) continue;
    title->replace(at, kPicojoules.size(), prefix.unit);
    visit([&](double& value) { value /= prefix.picojoules; });
    return;
  }
}

}  // namespace

std::string TitleOf(const std::string& name) {
  const auto found = [](std::string_view wanted) {
    const auto* title =
        std::find_if(std::begin(kTitles), std::end(kTitles), [&](const auto& entry) { return entry.first == wanted; });
    return title == std::end(kTitles) ? std::string_view() : title->second;
  };
  if (!found(name).empty()) return std::string(found(name));
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos || found(name.substr(dot + 1)).empty()) return name;
  return name.substr(0, dot) + ": " + std::string(found(name.substr(dot + 1)));
}

void UseEnergyPrefix(Chart* chart) {
  UsePrefix(&chart->x_label, [&](const auto& use) {
    for (ChartSeries& series : chart->series) {
      for (ChartPoint& point : series.points) use(point.x);
    }
    for (double& tick : chart->x_ticks) use(tick);
  });
  UsePrefix(&chart->y_label, [&](const auto& use) {
    for (ChartSeries& series : chart->series) {
      for (ChartPoint& point : series.points) {
        use(point.y);
        if (!point.spread) continue;
        use(point.spread->low);
        use(point.spread->high);
        if (!point.spread->box) continue;
        use(point.spread->box->first);
        use(point.spread->box->median);
        use(point.spread->box->third);
      }
    }
    for (ChartBaseline& baseline : chart->baselines) use(baseline.y);
  });
}

}  // namespace stoch::cli
