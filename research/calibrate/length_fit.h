// SPDX-License-Identifier: Apache-2.0
// From what samples lose at each stream length to thresholds under a budget of cycles.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/sc/sc_lengths.h"
#include "loader/research/mp_file.h"

namespace stoch {

// Rows, or (row, chunk) pairs, of one operator and bucket of layers.
struct LengthSamples {
  std::vector<float> metrics;  // signed
  // By amax, l2 and crest, unsigned, where one of them is chosen once all samples are there; else empty.
  std::array<std::vector<float>, 3> candidates;
  // How many 128ths of a row, or pair, each stands for, and the multiplications of one: whole numbers, so that sums of
  // costs are exact.
  std::vector<double> stands_for, macs;
  std::vector<double> errors;  // [sample][level], levels ascending

  void Append(const LengthSamples& other);
};

struct LengthBucket {
  std::string op;
  int64_t bucket = 0;  // of layers
  bool by_chunk = false;
  double weight = 1;  // of its errors
  LengthSamples samples;

  std::string key() const { return op + ":t0:l" + std::to_string(bucket); }
};

struct FittedLengths {
  std::vector<MpBucket> buckets;  // in the order given: thresholds in file order, metric_lo, _hi, _mean, _std
  // Of the samples with the thresholds as floats: by rows or pairs, and by macs.
  double average = 0, mac_average = 0;
  // By operator: the rank correlation of metric and of what the longest length gains over the shortest.
  std::map<std::string, std::optional<double>> fidelity;
};

// One multiplier for all buckets, exact dynamic programming over at most 2048 bins of equally many samples each, in
// order of (u, index); samples of equal u share a bin, since no threshold parts them.
// Requires: at least two `levels`, ascending; every bucket has samples; budget > 0 is a share of `ref` cycles.
// Errors:   InvalidInput where the shortest levels exceed the budget.
FittedLengths FitLengths(std::span<const LengthBucket> buckets, std::span<const int> levels, double budget, int ref);

// Checks a budget before there are samples: every product takes at least `shortest` cycles. Also refuses a budget that
// `longest` for every product does not use up.
void CheckBudget(double budget, int shortest, int longest, int ref);

// Spearman's rho with mean ranks; none where a side has no spread.
std::optional<double> RankCorrelation(std::span<const double> a, std::span<const double> b);

}  // namespace stoch
