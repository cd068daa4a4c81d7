// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/hardware/binomial.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/base/check.h"

namespace stoch {
namespace {

constexpr double kLeastWeight = 0x1p-100;  // least weight that is kept, relative to the mode's

// Probabilities of low, low + 1, ... flips, relative to the mode's. The order of operations belongs to the definition:
// double rounds the same everywhere, without contraction.
struct Weights {
  int64_t low = 0;
  std::vector<double> w;
};

Weights WeightsOf(int64_t n, double rate) {
  const double f = 1.0 - rate;
  const auto mode = std::min(n, static_cast<int64_t>(std::floor(static_cast<double>(n + 1) * rate)));
  std::vector<double> down;
  double weight = 1.0;
  for (int64_t k = mode; k >= 1; --k) {
    weight = (weight * (static_cast<double>(k) * f)) / (static_cast<double>(n - k + 1) * rate);
    if (weight < kLeastWeight) break;
    down.push_back(weight);
  }
  Weights result;
  result.low = mode - static_cast<int64_t>(down.size());
  result.w.assign(down.rbegin(), down.rend());
  result.w.push_back(1.0);
  weight = 1.0;
  for (int64_t k = mode; k < n; ++k) {
    weight = (weight * (static_cast<double>(n - k) * rate)) / (static_cast<double>(k + 1) * f);
    if (weight < kLeastWeight) break;
    result.w.push_back(weight);
  }
  return result;
}

}  // namespace

BinomialLine MakeBinomialLine(int64_t n, double rate) {
  STOCH_CHECK(n >= 1 && rate > 0 && rate <= 1);
  if (rate == 1.0) return {n, {}};
  const Weights weights = WeightsOf(n, rate);
  const size_t size = weights.w.size();
  std::vector<double> tail(size);
  double total = 0;
  for (size_t k = size; k-- > 0;) {
    tail[k] = total;
    total = total + weights.w[k];
  }
  BinomialLine line;
  line.first = weights.low;
  for (size_t k = 0; k < size; ++k) {
    const double q = tail[k] / total;
    if (q == 1.0) {
      ++line.first;
      continue;
    }
    const double scaled = std::rint(q * 0x1p64);
    if (scaled == 0.0) break;
    line.entries.push_back(static_cast<uint64_t>(scaled));
  }
  return line;
}

BinomialTable::BinomialTable(double rate, int64_t most) : lines_(size_t{kDigits} * BinomialTableView::kBase) {
  int64_t unit = 1;
  for (int i = 0; i < kDigits && unit <= most; ++i, unit *= BinomialTableView::kBase) {
    for (int64_t d = 1; d < BinomialTableView::kBase && d * unit <= most; ++d) {
      lines_[static_cast<size_t>(i * BinomialTableView::kBase + d)] = MakeBinomialLine(d * unit, rate);
    }
  }
  for (const BinomialLine& line : lines_) views_.push_back(line.view());
}

int64_t BinomialTable::bytes() const {
  auto bytes = static_cast<int64_t>(views_.size() * sizeof(BinomialLineView));
  for (const BinomialLine& line : lines_) bytes += static_cast<int64_t>(line.entries.size() * sizeof(uint64_t));
  return bytes;
}

BinomialTablePtr MakeBinomialTable(double rate, int64_t most) {
  static std::mutex mutex;
  static std::map<std::pair<double, int64_t>, std::weak_ptr<const BinomialTable>> live;
  const std::lock_guard lock(mutex);
  std::erase_if(live, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const BinomialTable>& entry = live[{rate, most}];
  BinomialTablePtr table = entry.lock();
  if (table == nullptr) {
    table = std::make_shared<const BinomialTable>(rate, most);
    entry = table;
  }
  return table;
}

}  // namespace stoch
