// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/hardware/binomial.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/math/random.h"

namespace stoch {
namespace {

constexpr double kLeastWeight = 0x1p-100;  // of the mode's
constexpr int kDigitBits = 8;
constexpr int64_t kBase = 1 << kDigitBits;

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

int64_t BinomialLine::Flips(uint64_t uniform) const {
  // The first entry that is not above the number.
  const auto end =
      std::partition_point(entries.begin(), entries.end(), [uniform](uint64_t entry) { return entry > uniform; });
  return first + (end - entries.begin());
}

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

BinomialTable::BinomialTable(double rate, int64_t most) {
  int64_t unit = 1;
  for (int i = 0; i < kDigits && unit <= most; ++i, unit *= kBase) {
    for (int64_t d = 1; d < kBase && d * unit <= most; ++d) lines_[i].push_back(MakeBinomialLine(d * unit, rate));
  }
}

int64_t BinomialTable::Flips(int64_t n, uint64_t key, uint64_t first_stream, uint64_t column) const {
  int64_t flips = 0;
  for (int i = 0; n > 0; ++i, n >>= kDigitBits) {
    const int64_t digit = n % kBase;
    if (digit == 0) continue;
    const uint64_t uniform = RandomBits(key, first_stream + 2 * static_cast<uint64_t>(i), column);
    flips += lines_[i][static_cast<size_t>(digit - 1)].Flips(uniform);
  }
  return flips;
}

int64_t BinomialTable::bytes() const {
  int64_t bytes = 0;
  for (const std::vector<BinomialLine>& lines : lines_) {
    for (const BinomialLine& line : lines) bytes += static_cast<int64_t>(line.entries.size() * sizeof(uint64_t));
  }
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

uint32_t FlippedBits(const BinomialLine& line, int bits, uint64_t key, uint64_t column) {
  const auto flips = static_cast<int>(line.Flips(RandomBits(key, 0, column)));
  uint32_t mask = 0;
  for (int j = bits - flips; j < bits; ++j) {
    const uint64_t draw = RandomBits(key, 1 + static_cast<uint64_t>(j), column);
    // The upper half of a 128-bit product: uniform in 0..j.
    const auto t = static_cast<int>((static_cast<unsigned __int128>(draw) * static_cast<unsigned>(j + 1)) >> 64);
    mask |= (mask >> t & 1u) != 0 ? 1u << j : 1u << t;
  }
  return mask;
}

}  // namespace stoch
