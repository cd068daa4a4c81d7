// SPDX-License-Identifier: Apache-2.0
// Stream lengths under a budget of cycles: one multiplier for all buckets, exact dynamic programming in each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace stoch {

// Bins of one bucket in ascending u.
struct StaircaseBucket {
  std::vector<double> u_left, u_right;      // the extremes of a bin's samples
  std::vector<std::vector<double>> errors;  // [bin][level], levels ascending
  std::vector<double> weights;              // [bin]: macs
};

struct Staircase {
  double multiplier = 0;
  double cost = 0;                             // sum of weight * length
  std::vector<std::vector<int>> rungs;         // [bucket][bin], not decreasing
  std::vector<std::vector<float>> thresholds;  // [bucket][levels - 1]: rung = number of thresholds below u
};

// Minimises the sum of errors + multiplier * weight * length over lengths that do not decrease with u, ties to the
// shorter length. The multiplier is 0 if that fits `budget`, else the upper end of 64 bisections of [0, hi], hi the
// first power of two that fits.
// Errors: InvalidInput where the shortest lengths do not fit.
Staircase FitStaircase(std::span<const StaircaseBucket> buckets, std::span<const int> levels, double budget);

}  // namespace stoch
