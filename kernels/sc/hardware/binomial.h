// SPDX-License-Identifier: Apache-2.0
// How many of n bits flip, each with one probability, exactly in distribution and from uniform numbers that are
// functions of a key: the same on every device, batch and cut (docs/research.md).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/math/host_device.h"
#include "kernels/math/random.h"

namespace stoch {

// The number of flips of n bits by inversion: `first` plus how many entries are above a uniform 64-bit number.
// Entries descend: P(flips > first + i) * 2^64, rounded. Views have no memory of their own, so that kernels take them.
struct BinomialLineView {
  int64_t first = 0;
  const uint64_t* entries = nullptr;
  int64_t size = 0;

  STOCH_HD int64_t Flips(uint64_t uniform) const {
    int64_t low = 0, high = size;  // entries before low are above the number, from high on they are not
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (entries[middle] > uniform) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return first + low;
  }
};
struct BinomialLine {
  int64_t first = 0;
  std::vector<uint64_t> entries;

  BinomialLineView view() const { return {first, entries.data(), static_cast<int64_t>(entries.size())}; }
  int64_t Flips(uint64_t uniform) const { return view().Flips(uniform); }
};

// Requires: n >= 1, 0 < rate <= 1.
BinomialLine MakeBinomialLine(int64_t n, double rate);

// Lines of every digit d * 256^i that a number up to `most` can have.
struct BinomialTableView {
  static constexpr int kDigits = 4;
  static constexpr int kDigitBits = 8;
  static constexpr int kBase = 1 << kDigitBits;

  const BinomialLineView* lines = nullptr;  // [kDigits][kBase], by digit; null: nothing flips

  // B(n): the sum over the digits of n, digit i by draw first_stream + 2 * i of `column` under `key`.
  // Requires: 0 <= n <= most.
  STOCH_HD int64_t Flips(int64_t n, uint64_t key, uint64_t first_stream, uint64_t column) const {
    int64_t flips = 0;
    for (int i = 0; n > 0; ++i, n >>= kDigitBits) {
      const int64_t digit = n % kBase;
      if (digit == 0) continue;
      flips += lines[i * kBase + digit].Flips(RandomBits(key, first_stream + 2 * static_cast<uint64_t>(i), column));
    }
    return flips;
  }
};
class BinomialTable {
 public:
  static constexpr int kDigits = BinomialTableView::kDigits;

  // Requires: 0 <= most < 2^32, 0 < rate <= 1.
  BinomialTable(double rate, int64_t most);
  BinomialTable(const BinomialTable&) = delete;
  BinomialTable& operator=(const BinomialTable&) = delete;

  BinomialTableView view() const { return {views_.data()}; }
  int64_t Flips(int64_t n, uint64_t key, uint64_t first_stream, uint64_t column) const {
    return view().Flips(n, key, first_stream, column);
  }
  // [kDigits][kBase] as of BinomialTableView; digits that `most` does not reach have empty lines.
  const std::vector<BinomialLine>& lines() const { return lines_; }
  // Memory of entries and views.
  int64_t bytes() const;

 private:
  std::vector<BinomialLine> lines_;
  std::vector<BinomialLineView> views_;
};
using BinomialTablePtr = std::shared_ptr<const BinomialTable>;

// Equal rates and bounds share one table while it lives. Threads: safe.
BinomialTablePtr MakeBinomialTable(double rate, int64_t most);

// Which of the `bits` bits of a word flip: as many as `line` (of n = bits) says by draw 0, then Floyd's subset by the
// next ones. Requires: 1 <= bits <= 32.
STOCH_HD uint32_t FlippedBits(const BinomialLineView& line, int bits, uint64_t key, uint64_t column) {
  const auto flips = static_cast<int>(line.Flips(RandomBits(key, 0, column)));
  uint32_t mask = 0;
  for (int j = bits - flips; j < bits; ++j) {
    const uint64_t draw = RandomBits(key, 1 + static_cast<uint64_t>(j), column);
    const auto t = static_cast<int>(MulHigh(draw, static_cast<uint64_t>(j) + 1));  // uniform in 0..j
    mask |= (mask >> t & 1u) != 0 ? 1u << j : 1u << t;
  }
  return mask;
}

}  // namespace stoch
