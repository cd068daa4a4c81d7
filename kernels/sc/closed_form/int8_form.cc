// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/closed_form/int8_form.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "kernels/sc/closed_form/closed_form.h"
#include "kernels/sc/closed_form/tile_form.h"

namespace stoch {
namespace {

constexpr int kLog2Block = 3;
static_assert((1 << kLog2Block) + 1 == kInt8Highs);

// A row of sums as a linear form of fields and a bit: row[i] = offset + sum of factors[j] field[j](i) + bit i of `rest`.
template <size_t kFields>
struct Fit {
  std::array<int, kFields> factors = {};
  int offset = 0;
  uint32_t rest = 0;
};

// Finds fits of rows of kLength sums, those of small factors first. Fields of i: i >> j, of the lowest bit alone where
// low_bit says so of j = 0.
template <size_t kFields, size_t kLength>
class Fitter {
 public:
  Fitter(bool low_bit, const std::array<int, kFields>& least, const std::array<int, kFields>& most)
      : low_bit_(low_bit) {
    std::array<int, kFields> each = least;
    const auto next = [&] {
      for (size_t j = 0; j < kFields; ++j) {
        if (++each[j] <= most[j]) return true;
        each[j] = least[j];
      }
      return false;
    };
    do {
      candidates_.push_back(each);
    } while (next());
    const auto size = [](const std::array<int, kFields>& f) {
      return std::accumulate(f.begin(), f.end(), 0, [](int sum, int x) { return sum + std::abs(x); });
    };
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [&](const auto& a, const auto& b) { return size(a) < size(b); });
  }

  // Nothing where no candidate leaves a bit.
  std::optional<Fit<kFields>> Find(const std::array<int, kLength>& row) const {
    for (const auto& factors : candidates_) {
      std::array<int, kLength> rest;
      int least = std::numeric_limits<int>::max();
      int most = std::numeric_limits<int>::min();
      for (size_t i = 0; i < kLength && (i == 0 || most - least <= 1); ++i) {
        rest[i] = row[i];
        for (size_t j = 0; j < kFields; ++j) rest[i] -= factors[j] * Field(j, static_cast<int>(i));
        least = std::min(least, rest[i]);
        most = std::max(most, rest[i]);
      }
      if (most - least > 1) continue;
      Fit<kFields> fit{factors, least, 0};
      for (size_t i = 0; i < kLength; ++i) fit.rest |= static_cast<uint32_t>(rest[i] - least) << i;
      return fit;
    }
    return std::nullopt;
  }

 private:
  int Field(size_t j, int i) const { return j == 0 && low_bit_ ? i & 1 : i >> j; }

  bool low_bit_;
  std::vector<std::array<int, kFields>> candidates_;
};

using HighFit = Fit<3>;
using LowFit = Fit<4>;

// The patterns of a closed form, fitted.
struct Fits {
  std::vector<HighFit> high;   // fits of P(k; h), without q h
  std::vector<LowFit> low[2];  // fits of G(q; l), and of G(q + 1; l), which negative activations take
};

size_t At(int row, int columns, int column) {
  return static_cast<size_t>(row) * static_cast<size_t>(columns) + static_cast<size_t>(column);
}

std::optional<Fits> MakeFits(const ScClosedForm& form) {
  static const Fitter<3, kInt8Highs> kHigh(false, {-2, -3, -3}, {2, 4, 4});
  static const Fitter<4, kInt8Lows> kLow(true, {-2, -2, -3, -3}, {2, 3, 3, 4});
  Fits fits;
  for (size_t at = 0; at < form.high_sums.size(); at += kInt8Highs) {
    std::array<int, kInt8Highs> row;
    for (size_t h = 0; h < row.size(); ++h) row[h] = form.high_sums[at + h];
    const std::optional<HighFit> fit = kHigh.Find(row);
    if (!fit) return std::nullopt;
    fits.high.push_back(*fit);
  }
  for (size_t at = 0; at < form.low_sums.size(); at += kInt8Lows) {
    for (const bool negative : {false, true}) {
      std::array<int, kInt8Lows> row;
      for (size_t l = 0; l < row.size(); ++l) row[l] = form.low_sums[at + l] + (negative ? form.low_steps[at + l] : 0);
      const std::optional<LowFit> fit = kLow.Find(row);
      if (!fit) return std::nullopt;
      fits.low[negative ? 1 : 0].push_back(*fit);
    }
  }
  return fits;
}

uint32_t Bits(const std::vector<uint8_t>& of, size_t first, int count) {
  uint32_t bits = 0;
  for (int i = 0; i < count; ++i) bits |= static_cast<uint32_t>(of[first + static_cast<size_t>(i)]) << i;
  return bits;
}

// All factors fit a signed byte: they are sums of a few of the fitters' and of q <= 16. c is within -2..0, as the count of
// v = 0 is 0.
ScInt8Entry MakeEntry(const ScClosedForm& form, const Fits& fits, int mask, int level, bool negative) {
  const int k = form.enabled[At(mask, form.levels, level)];
  const int q = k / form.block;
  const int high_pattern = form.high_pattern[At(mask, form.cycles + 1, k)];
  const int low_pattern = form.low_pattern[At(mask, form.cycles / form.block + 1, q)];
  const HighFit& high = fits.high[static_cast<size_t>(high_pattern)];
  const LowFit& low = fits.low[negative ? 1 : 0][static_cast<size_t>(low_pattern)];
  std::array<int, 7> factors = {low.factors[0],      low.factors[1],  low.factors[2], low.factors[3],
                                high.factors[0] + q, high.factors[1], high.factors[2]};
  // l >> j = (v >> j) - (h << (4 - j))
  for (size_t j = 1; j < 4; ++j) factors[4] -= low.factors[j] * (16 >> j);
  int c = high.offset + low.offset;
  uint32_t high_rest = high.rest;
  uint32_t low_rest = low.rest;
  uint32_t high_steps = Bits(form.high_steps, At(high_pattern, kInt8Highs, 0), kInt8Highs);
  if (negative) {
    constexpr uint32_t kHighMask = (1u << kInt8Highs) - 1;
    for (int& factor : factors) factor = -factor;
    high_rest ^= kHighMask;
    low_rest ^= 0xffff;
    high_steps ^= kHighMask;
    c = -2 - c;
  }
  ScInt8Entry entry;
  for (size_t j = 0; j < factors.size(); ++j) entry.factors[j] = static_cast<int8_t>(factors[j]);
  entry.factors[7] = static_cast<int8_t>(std::accumulate(factors.begin(), factors.end(), 0) - 3 - 2 * c);
  entry.high = high_rest | high_steps << kInt8Highs | static_cast<uint32_t>(-c) << (2 * kInt8Highs);
  entry.low = low_rest | Bits(form.low_steps, At(low_pattern, kInt8Lows, 0), kInt8Lows) << kInt8Lows;
  return entry;
}

}  // namespace

bool HasInt8Form(const ScOperator& op) {
  if (!HasTileForm(op)) return false;
  const std::optional<ScClosedForm> form = MakeClosedFormTables(op, kLog2Block);
  return form && MakeFits(*form).has_value();
}

std::optional<std::vector<ScInt8Entry>> MakeScInt8Entries(const ScOperator& op) {
  if (!HasTileForm(op)) return std::nullopt;
  const std::optional<ScClosedForm> form = MakeClosedFormTables(op, kLog2Block);
  if (!form) return std::nullopt;
  const std::optional<Fits> fits = MakeFits(*form);
  if (!fits) return std::nullopt;
  std::vector<ScInt8Entry> entries(static_cast<size_t>(op.masks) * 256);
  for (int mask = 0; mask < op.masks; ++mask) {
    for (int level = 0; level < op.levels; ++level) {
      for (const bool negative : {false, true}) {
        entries[At(mask, 256, level + (negative ? 128 : 0))] = MakeEntry(*form, *fits, mask, level, negative);
      }
    }
  }
  return entries;
}

int Int8FormProduct(const ScInt8Entry& entry, uint8_t b) {
  const int level = b & 0x7f;
  const int v = level + level / 64;
  const int h = v / kInt8Lows;
  const int l = v % kInt8Lows;
  const int n = b >= 128 ? 1 : 0;
  int sum = entry.factors[7] * n - static_cast<int>(entry.high >> (2 * kInt8Highs));
  for (int j = 0; j < 7; ++j) {
    const int field = j == 0 ? v & 1 : v >> j;
    sum += entry.factors[j] * (n == 0 ? field : -field - 1);
  }
  const auto bit = [n](uint32_t word, int at) { return static_cast<int>(word >> at & 1) ^ n; };
  const uint32_t both = entry.high >> (kInt8Highs + h) & entry.low >> (kInt8Lows + l);
  return sum + bit(entry.high, h) + bit(entry.low, l) + bit(both, 0);
}

}  // namespace stoch
