// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/sc_lengths.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/base/check.h"
#include "kernels/math/elementary.h"
#include "kernels/math/reduce.h"

namespace stoch {
namespace {

constexpr float kNoSpread = 1e-8f;

float MaxAbs(const float* x, int64_t n) {
  float max = 0.0f;
  for (int64_t i = 0; i < n; ++i) max = std::max(max, std::abs(x[i]));
  return max;
}

float L2(const float* x, int64_t n) {
  float lanes[kRowLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % kRowLanes] = Fma(x[i], x[i], lanes[i % kRowLanes]);
  return std::sqrt(FoldLanes<kRowLanes>(lanes));
}

float Clamp01(float u) { return u > 0.0f ? (u < 1.0f ? u : 1.0f) : 0.0f; }

struct Extremes {
  float lo, hi;
};
Extremes ExtremesOf(std::span<const float> metrics) {
  const auto [lo, hi] = std::minmax_element(metrics.begin(), metrics.end());
  return {*lo, *hi};
}

int RowLevel(const ScLengthRule& rule, float u) {
  if (rule.escapes && static_cast<double>(u) > rule.escape_threshold) {
    return static_cast<int>(rule.thresholds.size()) + 1;
  }
  size_t level = 0;
  while (level < rule.thresholds.size() && u < rule.thresholds[level]) ++level;
  return static_cast<int>(level);
}

// Rows by (metric descending, index); the first rint(f * rows) get level 0, and so on; the rest the last.
std::vector<int> FractionLevels(const ScLengthRule& rule, std::span<const float> metrics) {
  std::vector<size_t> order(metrics.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t i, size_t j) { return metrics[i] > metrics[j]; });
  std::vector<int> levels(metrics.size(), static_cast<int>(rule.levels.size()) - 1);
  size_t next = 0;
  for (size_t i = 0; i + 1 < rule.levels.size() && i < rule.fractions.size(); ++i) {
    const double rows = std::nearbyint(rule.fractions[i] * static_cast<double>(metrics.size()));
    for (auto count = static_cast<int64_t>(rows); count > 0 && next < order.size(); --count) {
      levels[order[next++]] = static_cast<int>(i);
    }
  }
  return levels;
}

template <typename T>
void Repeat(std::vector<T>& values, int times) {
  const size_t size = values.size();
  values.resize(size * static_cast<size_t>(times));
  for (size_t i = size; i < values.size(); ++i) values[i] = values[i - size];
}

}  // namespace

int ScLengthRule::Length(int level, int64_t chunk) const {
  if (level == static_cast<int>(thresholds.size()) + 1 && escapes) return escape_len;
  const std::vector<int>& lengths =
      ladders.empty() ? levels : ladders[static_cast<size_t>(chunk_bands[static_cast<size_t>(chunk)])];
  return lengths[static_cast<size_t>(level)];
}

std::vector<int> ScLengthRule::Lengths() const {
  std::vector<int> all = ladders.empty() ? levels : std::vector<int>();
  for (const std::vector<int>& ladder : ladders) all.insert(all.end(), ladder.begin(), ladder.end());
  if (escapes) all.push_back(escape_len);
  std::sort(all.begin(), all.end(), std::greater<>());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

float ScRowMetric(ScMetric metric, float sign, const float* x, int64_t n) {
  switch (metric) {
    case ScMetric::kAmax: return sign * MaxAbs(x, n);
    case ScMetric::kL2: return sign * L2(x, n);
    case ScMetric::kCrest: return sign * (MaxAbs(x, n) / (L2(x, n) + 1e-12f));
  }
  STOCH_CHECK(false);
}

std::vector<int> ScRowLevels(const ScLengthRule& rule, std::span<const float> metrics) {
  std::vector<int> levels(metrics.size(), 0);
  if (metrics.empty()) return levels;
  if (rule.scope == ScLengthScope::kFractions) return FractionLevels(rule, metrics);
  if (rule.normalise == ScNormalise::kFixed) {
    const float range = rule.hi - rule.lo;
    for (size_t i = 0; i < levels.size(); ++i) levels[i] = RowLevel(rule, Clamp01((metrics[i] - rule.lo) / range));
    return levels;
  }
  const auto [lo, hi] = ExtremesOf(metrics);
  const float range = hi - lo;
  if (range < kNoSpread) return levels;
  for (size_t i = 0; i < levels.size(); ++i) levels[i] = RowLevel(rule, (metrics[i] - lo) / range);
  return levels;
}

std::vector<int> ScChunkLevels(const ScLengthRule& rule, std::span<const float> metrics) {
  std::vector<int> levels(metrics.size(), 0);
  if (metrics.empty()) return levels;
  float lo = rule.lo;
  float range = rule.hi - rule.lo;
  const bool fixed = rule.normalise == ScNormalise::kFixed;
  if (!fixed) {
    const Extremes extremes = ExtremesOf(metrics);
    lo = extremes.lo;
    range = std::max(extremes.hi - extremes.lo, kNoSpread);
  }
  for (size_t i = 0; i < levels.size(); ++i) {
    const float raw = (metrics[i] - lo) / range;
    const float u = fixed ? Clamp01(raw) : raw;
    levels[i] =
        static_cast<int>(std::count_if(rule.thresholds.begin(), rule.thresholds.end(), [u](float t) { return t < u; }));
  }
  return levels;
}

int ScExtras::Slot(int length) const {
  for (size_t i = 0; i < by_length.size(); ++i) {
    if ((by_length[i] == nullptr ? 0 : by_length[i]->config.stoc_len) == length) return static_cast<int>(i);
  }
  STOCH_CHECK(false);
}

ScConfig AtLength(const ScConfig& config, int length, const std::map<int, int>& grids) {
  ScConfig result = config;
  result.stoc_len = length;
  const auto grid = grids.find(length);
  if (grid == grids.end()) return result;
  result.rng_levels = grid->second;
  result.rng_grid = ScGrid::kFull;
  return result;
}

std::vector<ScOperatorPtr> MakeScOperators(const ScConfig& config, std::span<const int> lengths,
                                           const std::map<int, int>& grids) {
  std::vector<ScOperatorPtr> operators;
  int masks = 1;
  for (const int length : lengths) {
    operators.push_back(length == 0 ? nullptr : MakeScOperator(AtLength(config, length, grids)));
    if (length != 0) masks = std::max(masks, operators.back()->masks);
  }
  // Kernels take codes and scales from some operator: one that no length picks, where all are 0.
  const bool none = std::all_of(operators.begin(), operators.end(), [](const auto& op) { return op == nullptr; });
  if (none) {
    operators.push_back(MakeScOperator(config));
    masks = operators.back()->masks;
  }
  // The full grid over the full length has one mask where shorter streams have several.
  for (ScOperatorPtr& op : operators) {
    if (op == nullptr || op->masks == masks) continue;
    STOCH_CHECK(op->masks == 1);
    auto repeated = std::make_shared<ScOperator>(*op);
    repeated->masks = masks;
    Repeat(repeated->counts, masks);
    Repeat(repeated->streams_a, masks);
    Repeat(repeated->ranks_b, masks);
    op = std::move(repeated);
  }
  return operators;
}

}  // namespace stoch
