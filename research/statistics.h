// SPDX-License-Identifier: Apache-2.0
// Statistics of repeated runs, in double: means, their errors and Student's t.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stoch {

// The two-sided 95 % point of Student's t: a table for 1..30 degrees of freedom, beyond them a series in 1 / v.
// Requires: degrees >= 1. Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
double StudentT95(int64_t degrees);

// Of n values: mean = sum / n, sd = sqrt(sum (x - mean)^2 / (n - 1)), se = sd / sqrt(n), the mean -+ t(n - 1) * se.
// Sums ascend. sd, se and the interval are there for n > 1.
struct Summary {
  int64_t n = 0;
  double mean = 0, min = 0, max = 0;
  std::optional<double> sd, se, ci95_low, ci95_high;
};
// Requires: at least one value.
Summary Summarise(std::span<const double> values);

// d = run - reference, window by window: mean, its error, z = mean / se, the 95 % interval, ratio = exp(mean).
struct PairedDifference {
  double mean = 0, ratio = 1;
  std::optional<double> se, z, ci95_low, ci95_high;  // of more than one window; z: where se is not 0
};
// nll for each token of each window. Requires: as many windows, at least one.
PairedDifference ComparePairs(std::span<const double> run, std::span<const double> reference);

}  // namespace stoch
