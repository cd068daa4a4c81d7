// SPDX-License-Identifier: Apache-2.0
#include "research/calibrate/length_fit.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "research/calibrate/staircase.h"

namespace stoch {
namespace {

constexpr size_t kMaxBins = 2048;

// The constants that place a metric, and its samples in order of u.
struct Placed {
  float lo = 0, hi = 0;
  std::vector<float> u;
  std::vector<size_t> order;  // by (u, index)
};

Placed Place(const LengthSamples& samples) {
  STOCH_CHECK(!samples.metrics.empty());
  const auto [low, high] = std::minmax_element(samples.metrics.begin(), samples.metrics.end());
  constexpr double kRoom = 16;
  const double min = static_cast<double>(*low);
  const double max = static_cast<double>(*high);
  const double d = max > min ? max - min : 1.0;
  Placed placed{static_cast<float>(min - d / kRoom), static_cast<float>(max + d / kRoom), {}, {}};
  // As ScRowLevels and ScChunkLevels place it.
  const float range = placed.hi - placed.lo;
  for (const float metric : samples.metrics) {
    placed.u.push_back(std::min(std::max((metric - placed.lo) / range, 0.0f), 1.0f));
  }
  placed.order.resize(placed.u.size());
  std::iota(placed.order.begin(), placed.order.end(), size_t{0});
  std::stable_sort(placed.order.begin(), placed.order.end(),
                   [&](size_t a, size_t b) { return placed.u[a] < placed.u[b]; });
  return placed;
}

StaircaseBucket Bins(const LengthBucket& bucket, const Placed& placed, size_t levels) {
  const size_t count = placed.order.size();
  const size_t bins = std::min(count, kMaxBins);
  StaircaseBucket result;
  size_t begin = 0;
  for (size_t bin = 0; bin < bins; ++bin) {
    size_t end = (bin + 1) * count / bins;
    while (end < count && end > 0 && placed.u[placed.order[end]] == placed.u[placed.order[end - 1]]) ++end;
    if (end <= begin) continue;
    std::vector<double> errors(levels, 0.0);
    double macs = 0;
    for (size_t i = begin; i < end; ++i) {
      const size_t sample = placed.order[i];
      const double times = bucket.samples.stands_for[sample];
      for (size_t level = 0; level < levels; ++level) {
        errors[level] += times * bucket.samples.errors[sample * levels + level];
      }
      macs += times * bucket.samples.macs[sample];
    }
    for (double& error : errors) error *= bucket.weight;
    result.u_left.push_back(static_cast<double>(placed.u[placed.order[begin]]));
    result.u_right.push_back(static_cast<double>(placed.u[placed.order[end - 1]]));
    result.errors.push_back(std::move(errors));
    result.weights.push_back(macs);
    begin = end;
  }
  return result;
}

std::vector<double> MeanRanks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (size_t i = begin; i < end; ++i) ranks[order[i]] = static_cast<double>(begin + end - 1) / 2.0;
    begin = end;
  }
  return ranks;
}

std::string Short(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

[[noreturn]] void RejectBudget(double budget, double needed) {
  throw InvalidInput("budget " + Short(budget) + ": the shortest levels need " + Short(needed));
}

// What the written thresholds give the samples.
std::vector<int> Applied(const LengthBucket& bucket, const Placed& placed, const MpBucket& table,
                         std::span<const int> levels) {
  ScLengthRule rule;
  rule.lo = placed.lo;
  rule.hi = placed.hi;
  for (const double threshold : table.thresholds) rule.thresholds.push_back(static_cast<float>(threshold));
  std::vector<int> lengths;
  if (bucket.by_chunk) {
    rule.scope = ScLengthScope::kChunk;
    for (const int rung : ScChunkLevels(rule, bucket.samples.metrics))
      lengths.push_back(levels[static_cast<size_t>(rung)]);
    return lengths;
  }
  for (const int level : ScRowLevels(rule, bucket.samples.metrics)) {
    lengths.push_back(levels[levels.size() - 1 - static_cast<size_t>(level)]);
  }
  return lengths;
}

MpBucket TableOf(const LengthBucket& bucket, const Placed& placed, const std::vector<float>& thresholds,
                 std::span<const int> levels) {
  MpBucket table;
  // The staircase counts rungs from the shortest length, the row rule levels from the longest.
  for (const float threshold : thresholds) table.thresholds.push_back(static_cast<double>(threshold));
  if (bucket.by_chunk) {
    table.levels.assign(levels.begin(), levels.end());
  } else {
    std::reverse(table.thresholds.begin(), table.thresholds.end());
  }
  table.metric_lo = static_cast<double>(placed.lo);
  table.metric_hi = static_cast<double>(placed.hi);
  const auto n = static_cast<double>(placed.u.size());
  double sum = 0;
  for (const float u : placed.u) sum += static_cast<double>(u);
  const double mean = sum / n;
  double squares = 0;
  for (const float u : placed.u) squares += (static_cast<double>(u) - mean) * (static_cast<double>(u) - mean);
  table.metric_mean = mean;
  table.metric_std = std::sqrt(squares / n);
  return table;
}

}  // namespace

void LengthSamples::Append(const LengthSamples& other) {
  metrics.insert(metrics.end(), other.metrics.begin(), other.metrics.end());
  stands_for.insert(stands_for.end(), other.stands_for.begin(), other.stands_for.end());
  macs.insert(macs.end(), other.macs.begin(), other.macs.end());
  errors.insert(errors.end(), other.errors.begin(), other.errors.end());
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates[i].insert(candidates[i].end(), other.candidates[i].begin(), other.candidates[i].end());
  }
}

std::optional<double> RankCorrelation(std::span<const double> a, std::span<const double> b) {
  STOCH_CHECK(a.size() == b.size());
  const std::vector<double> ranks_a = MeanRanks(a);
  const std::vector<double> ranks_b = MeanRanks(b);
  const double mean = (static_cast<double>(a.size()) - 1) / 2.0;
  double ab = 0;
  double aa = 0;
  double bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (ranks_a[i] - mean) * (ranks_b[i] - mean);
    aa += (ranks_a[i] - mean) * (ranks_a[i] - mean);
    bb += (ranks_b[i] - mean) * (ranks_b[i] - mean);
  }
  if (aa == 0 || bb == 0) return std::nullopt;
  return ab / std::sqrt(aa * bb);
}

void CheckBudget(double budget, int shortest, int longest, int ref) {
  if (shortest > budget * ref) RejectBudget(budget, static_cast<double>(shortest) / ref);
  const double most = static_cast<double>(longest) / ref;
  if (budget > most) {
    throw InvalidInput("budget " + Short(budget) + ": the longest level takes " + Short(most));
  }
}

FittedLengths FitLengths(std::span<const LengthBucket> buckets, std::span<const int> levels, double budget, int ref) {
  std::vector<Placed> placed;
  std::vector<StaircaseBucket> bins;
  double total = 0;
  double least = 0;
  for (const LengthBucket& bucket : buckets) {
    placed.push_back(Place(bucket.samples));
    bins.push_back(Bins(bucket, placed.back(), levels.size()));
    for (const double macs : bins.back().weights) {
      total += macs;
      least += macs * static_cast<double>(levels.front());
    }
  }
  const double cycles = budget * static_cast<double>(ref) * total;
  if (least > cycles) RejectBudget(budget, least / (total * static_cast<double>(ref)));
  const Staircase stairs = FitStaircase(bins, levels, cycles);

  FittedLengths result;
  double rows = 0;
  double row_cycles = 0;
  double macs = 0;
  double mac_cycles = 0;
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> by_op;  // metrics, gains
  for (size_t i = 0; i < buckets.size(); ++i) {
    const LengthSamples& samples = buckets[i].samples;
    result.buckets.push_back(TableOf(buckets[i], placed[i], stairs.thresholds[i], levels));
    const std::vector<int> lengths = Applied(buckets[i], placed[i], result.buckets.back(), levels);
    auto& [metrics, gains] = by_op[buckets[i].op];
    for (size_t s = 0; s < lengths.size(); ++s) {
      const auto length = static_cast<double>(lengths[s]);
      rows += samples.stands_for[s];
      row_cycles += samples.stands_for[s] * length;
      macs += samples.stands_for[s] * samples.macs[s];
      mac_cycles += samples.stands_for[s] * samples.macs[s] * length;
      metrics.push_back(static_cast<double>(samples.metrics[s]));
      gains.push_back(samples.errors[s * levels.size()] - samples.errors[(s + 1) * levels.size() - 1]);
    }
  }
  result.average = row_cycles / rows;
  result.mac_average = mac_cycles / macs;
  for (const auto& [op, sides] : by_op) result.fidelity[op] = RankCorrelation(sides.first, sides.second);
  return result;
}

}  // namespace stoch
