// SPDX-License-Identifier: Apache-2.0
#include "research/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/math/elementary.h"

namespace stoch {

double StudentT95(int64_t degrees) {
  constexpr std::array<double, 30> kTable = {
      12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139,
      2.200985,  2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
      2.079614,  2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831, 2.048407, 2.045230, 2.042272};
  STOCH_CHECK(degrees >= 1);
  if (degrees <= static_cast<int64_t>(kTable.size())) return kTable[static_cast<size_t>(degrees - 1)];
  constexpr double z = 1.959963984540054;
  const double v = static_cast<double>(degrees);
  const double z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
  return z + (z3 + z) / (4 * v) + (5 * z5 + 16 * z3 + 3 * z) / (96 * v * v) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * v * v * v);
}

Summary Summarise(std::span<const double> values) {
  STOCH_CHECK(!values.empty());
  Summary summary;
  summary.n = static_cast<int64_t>(values.size());
  const auto n = static_cast<double>(summary.n);
  double sum = 0;
  for (const double value : values) sum += value;
  summary.mean = sum / n;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  summary.min = *low;
  summary.max = *high;
  if (summary.n < 2) return summary;
  double squares = 0;
  for (const double value : values) squares += (value - summary.mean) * (value - summary.mean);
  summary.sd = std::sqrt(squares / (n - 1));
  summary.se = *summary.sd / std::sqrt(n);
  const double half = StudentT95(summary.n - 1) * *summary.se;
  summary.ci95_low = summary.mean - half;
  summary.ci95_high = summary.mean + half;
  return summary;
}

PairedDifference ComparePairs(std::span<const double> run, std::span<const double> reference) {
  STOCH_CHECK(run.size() == reference.size());
  std::vector<double> differences;
  for (size_t w = 0; w < run.size(); ++w) differences.push_back(run[w] - reference[w]);
  const Summary summary = Summarise(differences);
  PairedDifference paired;
  paired.mean = summary.mean;
  paired.ratio = ExpDouble(summary.mean);
  paired.se = summary.se;
  paired.ci95_low = summary.ci95_low;
  paired.ci95_high = summary.ci95_high;
  if (summary.se && *summary.se > 0) paired.z = summary.mean / *summary.se;
  return paired;
}

}  // namespace stoch
