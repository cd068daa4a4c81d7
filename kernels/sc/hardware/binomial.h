// SPDX-License-Identifier: Apache-2.0
// How many of n bits flip, each with one probability, exactly in distribution and from uniform numbers that are
// functions of a key: the same on every device, batch and cut (docs/research.md).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace stoch {

// The number of flips of n bits by inversion: `first` plus how many entries are above a uniform 64-bit number.
// Entries descend: P(flips > first + i) * 2^64, rounded.
struct BinomialLine {
  int64_t first = 0;
  std::vector<uint64_t> entries;

  int64_t Flips(uint64_t uniform) const;
};

// Requires: n >= 1, 0 < rate <= 1.
BinomialLine MakeBinomialLine(int64_t n, double rate);

// Lines of every digit d * 256^i that a number up to `most` can have.
class BinomialTable {
 public:
  static constexpr int kDigits = 4;

  // Requires: 0 <= most < 2^32, 0 < rate <= 1.
  BinomialTable(double rate, int64_t most);

  // B(n): the sum over the digits of n, digit i by draw first_stream + 2 * i of `column` under `key`.
  // Requires: 0 <= n <= most.
  int64_t Flips(int64_t n, uint64_t key, uint64_t first_stream, uint64_t column) const;

  int64_t bytes() const;

 private:
  std::vector<BinomialLine> lines_[kDigits];  // by d - 1
};
using BinomialTablePtr = std::shared_ptr<const BinomialTable>;

// Equal rates and bounds share one table while it lives. Threads: safe.
BinomialTablePtr MakeBinomialTable(double rate, int64_t most);

// Which of the `bits` bits of a word flip: as many as `line` (of n = bits) says by draw 0, then Floyd's subset by the
// next ones. Requires: 1 <= bits <= 32.
uint32_t FlippedBits(const BinomialLine& line, int bits, uint64_t key, uint64_t column);

}  // namespace stoch
