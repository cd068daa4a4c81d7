// SPDX-License-Identifier: Apache-2.0
#include "research/products/product_report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "kernels/base/check.h"
#include "kernels/sc/number_source.h"

namespace stoch {
namespace {

__extension__ using Int128 = __int128;

// Levels of a quantizer in the table: their number, and the number that entry 0 stands for.
struct Levels {
  explicit Levels(const ScOperator& op)
      : count(op.code == ScCode::kOffset ? 2 * op.q_max + 1 : op.q_max + 1),
        first(op.code == ScCode::kOffset ? -op.q_max : 0) {}
  int count, first;
};

// Sums of |count_t * Q^2 - t * a * b| over masks and levels, for every t: the streams of one mask after another.
class Progress {
 public:
  explicit Progress(const ScOperator& op)
      : op_(op),
        levels_(op),
        bounds_(LevelBoundaries(op.levels, levels_.count - 1, op.config.rng_levels)),
        sums_(static_cast<size_t>(op.config.stoc_len)),
        counts_(static_cast<size_t>(levels_.count)) {}

  void AddMask(int mask) {
    const std::vector<int> values_a = ComparatorValues(op_.config, ScSide::kA, mask);
    const std::vector<int> values_b = ComparatorValues(op_.config, ScSide::kB, mask);
    // The first level of side b whose comparator is on in a cycle.
    std::vector<int> first_on;
    for (const int value : values_b) {
      const auto end = bounds_.begin() + levels_.count;
      first_on.push_back(static_cast<int>(std::upper_bound(bounds_.begin(), end, value) - bounds_.begin()));
    }
    for (int a = 0; a < levels_.count; ++a) AddLevel(a, values_a, first_on);
  }

  // Means, in units of the full range. Requires: so many masks were added.
  std::vector<double> Means(int masks) const {
    const auto n = static_cast<double>(int64_t{masks} * levels_.count * levels_.count);
    const double q_squared = static_cast<double>(op_.q_max) * op_.q_max;
    std::vector<double> means;
    for (size_t t = 0; t < sums_.size(); ++t) {
      means.push_back(static_cast<double>(sums_[t]) / (static_cast<double>(t + 1) * q_squared * n));
    }
    return means;
  }

 private:
  void AddLevel(int a, const std::vector<int>& values_a, const std::vector<int>& first_on) {
    std::fill(counts_.begin(), counts_.end(), 0);
    size_t enabled = 0;
    for (size_t t = 0; t < values_a.size(); ++t) {
      const bool on = values_a[t] < bounds_[static_cast<size_t>(a)];
      switch (op_.config.gate) {
        case ScGate::kEnabled:
          if (on) CountFrom(first_on[enabled++]);
          break;
        case ScGate::kAnd:
          if (on) CountFrom(first_on[t]);
          break;
        case ScGate::kXnor:
          for (int& count : counts_) count += on ? -1 : 1;
          for (size_t b = static_cast<size_t>(first_on[t]); b < counts_.size(); ++b) counts_[b] += on ? 2 : -2;
          break;
        case ScGate::kTable:
        case ScGate::kCounts: STOCH_CHECK(false);
      }
      sums_[t] += Distance(static_cast<int>(t + 1) * (a + levels_.first));
    }
  }

  void CountFrom(int first) {
    for (size_t b = static_cast<size_t>(first); b < counts_.size(); ++b) ++counts_[b];
  }

  // Sum over levels b of |Q^2 count - slope * b|. Bound: 2^9 terms of 2^24.
  int64_t Distance(int slope) const {
    const int q_squared = op_.q_max * op_.q_max;
    int64_t sum = 0;
    for (int b = 0; b < levels_.count; ++b) {
      sum += std::abs(q_squared * counts_[static_cast<size_t>(b)] - slope * (b + levels_.first));
    }
    return sum;
  }

  const ScOperator& op_;
  const Levels levels_;
  const std::vector<int> bounds_;
  std::vector<int64_t> sums_;
  std::vector<int> counts_;
};

ProductProgress MeasureProgress(const ScOperator& op) {
  Progress progress(op);
  for (int mask = 0; mask < op.masks; ++mask) progress.AddMask(mask);
  ProductProgress result;
  result.mae_of_cycles = progress.Means(op.masks);
  for (size_t i = 0; i < ProductProgress::kBounds.size(); ++i) {
    const double bound = ProductProgress::kBounds[i];
    size_t least = result.mae_of_cycles.size();
    while (least > 0 && result.mae_of_cycles[least - 1] <= bound) --least;
    if (least < result.mae_of_cycles.size()) result.cycles_within[i] = static_cast<int>(least + 1);
  }
  return result;
}

ProductCorrelation MeasureCorrelation(const ScOperator& op) {
  const FreeStreams a(op.config, ScSide::kA, op.masks);
  const FreeStreams b(op.config, ScSide::kB, op.masks);
  const int length = op.config.stoc_len;
  return {CorrelateSides(a, b, length, a.levels()), CorrelateMasks(a, length, a.levels()),
          CorrelateMasks(b, length, b.levels())};
}

}  // namespace

ProductErrors MeasureProduct(const ScOperator& op) {
  const Levels levels(op);
  const int64_t q_squared = int64_t{op.q_max} * op.q_max;
  ProductErrors errors;
  errors.pairs = int64_t{levels.count} * levels.count;
  Int128 sum = 0, sum_abs = 0, sum_squares = 0, worst = -1;
  int64_t largest = 0;
  for (int mask = 0; mask < op.masks; ++mask) {
    Int128 of_mask = 0;
    for (int a = 0; a < levels.count; ++a) {
      for (int b = 0; b < levels.count; ++b) {
        const int64_t ideal = int64_t{op.config.stoc_len} * (a + levels.first) * (b + levels.first);
        const int64_t error = q_squared * op.count(mask, a, b) - ideal;
        sum += error;
        of_mask += std::abs(error);
        sum_squares += Int128{error} * error;
        largest = std::max<int64_t>(largest, std::abs(error));
      }
    }
    sum_abs += of_mask;
    if (of_mask <= worst) continue;
    worst = of_mask;
    errors.worst_mask = mask;
  }
  const auto q = static_cast<double>(q_squared);
  const double n = static_cast<double>(op.masks) * static_cast<double>(errors.pairs);
  errors.mae = static_cast<double>(sum_abs) / (q * n);
  errors.bias = static_cast<double>(sum) / (q * n);
  errors.rmse = std::sqrt(static_cast<double>(sum_squares) / n) / q;
  errors.max = static_cast<double>(largest) / q;
  errors.worst_mask_mae = static_cast<double>(worst) / (q * static_cast<double>(errors.pairs));
  return errors;
}

ProductReport ReportProduct(const ScOperator& op) {
  ProductReport report;
  report.errors = MeasureProduct(op);
  if (!HasSource(op.config.gate)) return report;
  report.correlation = MeasureCorrelation(op);
  report.progress = MeasureProgress(op);
  return report;
}

}  // namespace stoch
