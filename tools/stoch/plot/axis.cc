// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/plot/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace stoch::cli {
namespace {

constexpr double kMargin = 0.06;  // of the range, on either side

// The least of 1, 2, 5 times a power of ten that is not below `step`.
double NiceStep(double step) {
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::string TickText(double value, double step) {
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size >= 1e6 || size < 1e-4) return fmt::format("{:.3g}", value);
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  return fmt::format("{:.{}f}", value, decimals);
}

}  // namespace

Axis::Axis(double low, double high, bool logarithmic) : logarithmic_(logarithmic) {
  low_ = Mapped(low);
  high_ = Mapped(high);
  const double range = high_ - low_;
  const double margin = range > 0 ? kMargin * range : (logarithmic ? 0.5 : std::max(std::abs(low_), 1.0) / 2);
  low_ -= margin;
  high_ += margin;
}

double Axis::Mapped(double value) const { return logarithmic_ ? std::log10(value) : value; }

double Axis::Position(double value) const { return (Mapped(value) - low_) / (high_ - low_); }

std::vector<Axis::Tick> Axis::TicksAt(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::vector<Tick> ticks;
  for (const double value : values) ticks.push_back({value, fmt::format("{:g}", value)});
  return ticks;
}

std::vector<Axis::Tick> Axis::Ticks() const {
  constexpr int kWanted = 8;
  std::vector<Tick> ticks;
  if (logarithmic_) {
    for (auto power = static_cast<int>(std::floor(low_)); power <= static_cast<int>(std::ceil(high_)); ++power) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double value = factor * std::pow(10.0, power);
        const double at = Position(value);
        if (high_ - low_ > 3 && factor != 1.0) continue;  // several decades: powers of ten alone
        if (at >= 0 && at <= 1) ticks.push_back({value, fmt::format("{:g}", value)});
      }
    }
    if (ticks.size() > 1) return ticks;
    ticks.clear();
  }
  const double low = logarithmic_ ? std::pow(10.0, low_) : low_;
  const double high = logarithmic_ ? std::pow(10.0, high_) : high_;
  const double step = NiceStep((high - low) / kWanted);
  for (auto i = static_cast<int64_t>(std::ceil(low / step)); static_cast<double>(i) * step <= high; ++i) {
    const double value = static_cast<double>(i) * step;
    ticks.push_back({value, TickText(value, step)});
  }
  return ticks;
}

}  // namespace stoch::cli
