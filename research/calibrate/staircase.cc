// SPDX-License-Identifier: Apache-2.0
#include "research/calibrate/staircase.h"

#include <limits>
#include <string>

#include "kernels/base/error.h"

namespace stoch {
namespace {

// The best rung of each bin; the shortest among equals.
std::vector<int> Best(const StaircaseBucket& bucket, std::span<const int> levels, double multiplier) {
  const size_t bins = bucket.errors.size();
  const size_t count = levels.size();
  // best[bin][level]: the least cost of bins 0..bin with the last at most at `level`; from: the level it is at.
  std::vector<std::vector<double>> best(bins, std::vector<double>(count));
  std::vector<std::vector<int>> from(bins, std::vector<int>(count));
  for (size_t bin = 0; bin < bins; ++bin) {
    for (size_t level = 0; level < count; ++level) {
      const double own =
          bucket.errors[bin][level] + multiplier * bucket.weights[bin] * static_cast<double>(levels[level]);
      const double total = bin == 0 ? own : best[bin - 1][level] + own;
      if (level == 0 || total < best[bin][level - 1]) {
        best[bin][level] = total;
        from[bin][level] = static_cast<int>(level);
      } else {
        best[bin][level] = best[bin][level - 1];
        from[bin][level] = from[bin][level - 1];
      }
    }
  }
  std::vector<int> rungs(bins);
  size_t level = count - 1;
  for (size_t bin = bins; bin-- > 0;) {
    rungs[bin] = from[bin][level];
    level = static_cast<size_t>(rungs[bin]);
  }
  return rungs;
}

struct Fit {
  std::vector<std::vector<int>> rungs;
  double cost = 0;
};

Fit FitAt(std::span<const StaircaseBucket> buckets, std::span<const int> levels, double multiplier) {
  Fit fit;
  for (const StaircaseBucket& bucket : buckets) {
    fit.rungs.push_back(Best(bucket, levels, multiplier));
    for (size_t bin = 0; bin < bucket.weights.size(); ++bin) {
      fit.cost += bucket.weights[bin] * static_cast<double>(levels[static_cast<size_t>(fit.rungs.back()[bin])]);
    }
  }
  return fit;
}

std::vector<float> ThresholdsOf(const StaircaseBucket& bucket, const std::vector<int>& rungs, size_t levels) {
  std::vector<float> thresholds;
  for (size_t i = 0; i + 1 < levels; ++i) {
    size_t below = 0;  // bins at rungs 0..i
    while (below < rungs.size() && rungs[below] <= static_cast<int>(i)) ++below;
    if (below == 0) {
      thresholds.push_back(0.0f);
    } else if (below == rungs.size()) {
      thresholds.push_back(1.0f);
    } else {
      thresholds.push_back(static_cast<float>((bucket.u_right[below - 1] + bucket.u_left[below]) / 2.0));
    }
  }
  return thresholds;
}

}  // namespace

Staircase FitStaircase(std::span<const StaircaseBucket> buckets, std::span<const int> levels, double budget) {
  double least = 0;
  double total = 0;
  for (const StaircaseBucket& bucket : buckets) {
    for (const double weight : bucket.weights) {
      total += weight;
      least += weight * static_cast<double>(levels.front());
    }
  }
  if (least > budget) {
    throw InvalidInput("budget of " + std::to_string(budget / total) + " cycles: the shortest lengths need " +
                       std::to_string(least / total));
  }
  double multiplier = 0;
  Fit fit = FitAt(buckets, levels, 0);
  if (fit.cost > budget) {
    double high = 1;
    for (fit = FitAt(buckets, levels, high); fit.cost > budget; fit = FitAt(buckets, levels, high)) high *= 2;
    double low = 0;
    for (int i = 0; i < 64; ++i) {
      const double middle = (low + high) / 2;
      Fit candidate = FitAt(buckets, levels, middle);
      if (candidate.cost > budget) {
        low = middle;
      } else {
        high = middle;
        fit = std::move(candidate);
      }
    }
    multiplier = high;
  }
  Staircase result{multiplier, fit.cost, std::move(fit.rungs), {}};
  for (size_t i = 0; i < buckets.size(); ++i) {
    result.thresholds.push_back(ThresholdsOf(buckets[i], result.rungs[i], levels.size()));
  }
  return result;
}

}  // namespace stoch
