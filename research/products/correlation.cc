// SPDX-License-Identifier: Apache-2.0
#include "research/products/correlation.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/check.h"

namespace stoch {
namespace {

// A sum in double with the rounding of every addition kept apart: a million terms lose no digit.
// Source: A. Neumaier, Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen, ZAMM 54 (1974).
class CompensatedSum {
 public:
  void Add(double value) {
    const double sum = sum_ + value;
    rest_ += std::abs(sum_) >= std::abs(value) ? (sum_ - sum) + value : (value - sum) + sum_;
    sum_ = sum;
  }
  double value() const { return sum_ + rest_; }

 private:
  double sum_ = 0, rest_ = 0;
};

// Adds pairs of streams up.
class Correlator {
 public:
  explicit Correlator(int length) : length_(length) {}

  void Add(const FreeStreams& x, int mask_x, int level_x, const FreeStreams& y, int mask_y, int level_y) {
    int both = 0;
    for (int w = 0; w < x.words(); ++w) {
      both += std::popcount(x.stream(mask_x, level_x)[w] & y.stream(mask_y, level_y)[w]);
    }
    double scc = 0;
    if (!Correlate(x.ones(mask_x, level_x), y.ones(mask_y, level_y), both, length_, &scc)) return;
    sum_.Add(scc);
    sum_abs_.Add(std::abs(scc));
    ++pairs_;
  }

  StreamCorrelation Means() const {
    if (pairs_ == 0) return {};
    const auto n = static_cast<double>(pairs_);
    return {sum_.value() / n, sum_abs_.value() / n, pairs_};
  }

 private:
  int length_;
  CompensatedSum sum_, sum_abs_;
  int64_t pairs_ = 0;
};

}  // namespace

bool Correlate(int64_t n1, int64_t n2, int64_t n11, int64_t length, double* scc) {
  const int64_t delta = n11 * length - n1 * n2;
  const int64_t bound =
      delta > 0 ? std::min(n1, n2) * length - n1 * n2 : n1 * n2 - std::max<int64_t>(n1 + n2 - length, 0) * length;
  if (bound == 0) return false;
  *scc = static_cast<double>(delta) / static_cast<double>(bound);
  return true;
}

int QuantizerLevels(const ScConfig& config) {
  const int full = 1 << config.sc_prec;
  if (config.mode == ScMode::kUnipolar) return full;
  return config.gate == ScGate::kXnor ? full - 1 : full / 2;
}

FreeStreams::FreeStreams(const ScConfig& config, ScSide side, int masks)
    : masks_(masks), levels_(QuantizerLevels(config)), words_((config.stoc_len + 63) / 64) {
  STOCH_CHECK(masks >= 1 && masks <= DistinctMasks(config));
  const std::vector<int> boundaries = LevelBoundaries(levels_, levels_ - 1, config.rng_levels);
  for (int mask = 0; mask < masks; ++mask) {
    const std::vector<int> values = ComparatorValues(config, side, mask);
    for (const int boundary : boundaries) {
      const size_t first = bits_.size();
      bits_.resize(first + static_cast<size_t>(words_));
      int ones = 0;
      for (size_t t = 0; t < values.size(); ++t) {
        if (values[t] >= boundary) continue;
        bits_[first + t / 64] |= uint64_t{1} << (t % 64);
        ++ones;
      }
      ones_.push_back(ones);
    }
  }
}

StreamCorrelation CorrelateSides(const FreeStreams& a, const FreeStreams& b, int length, int q_levels) {
  Correlator correlator(length);
  for (int mask = 0; mask < a.masks(); ++mask) {
    for (int i = 1; i < q_levels - 1; ++i) {
      for (int j = 1; j < q_levels - 1; ++j) correlator.Add(a, mask, i, b, mask, j);
    }
  }
  return correlator.Means();
}

StreamCorrelation CorrelateMasks(const FreeStreams& side, int length, int q_levels) {
  Correlator correlator(length);
  for (int mask = 0; mask < side.masks(); ++mask) {
    for (int other = mask + 1; other < side.masks(); ++other) {
      for (int level = 1; level < q_levels - 1; ++level) correlator.Add(side, mask, level, side, other, level);
    }
  }
  return correlator.Means();
}

}  // namespace stoch
