// SPDX-License-Identifier: Apache-2.0
// An axis of a figure: where its ticks are, and where a value is.
#pragma once

#include <string>
#include <vector>

namespace stoch::cli {

// Linear, or logarithmic for values above 0.
class Axis {
 public:
  // Covers [low, high] with a margin; equal values get room around them.
  // Requires: finite values, low <= high; above 0 where `logarithmic`.
  Axis(double low, double high, bool logarithmic);

  // In [0, 1] for values of the range.
  double Position(double value) const;
  struct Tick {
    double value;
    std::string text;
  };
  // Three to nine, ascending: multiples of 1, 2 or 5 times a power of ten.
  std::vector<Tick> Ticks() const;
  // At these values, of a setting that has few.
  static std::vector<Tick> TicksAt(std::vector<double> values);

 private:
  double Mapped(double value) const;

  bool logarithmic_;
  double low_, high_;  // mapped
};

}  // namespace stoch::cli
