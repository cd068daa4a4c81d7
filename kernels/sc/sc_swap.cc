// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/sc_swap.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace stoch {

bool CanSwap(const ScOperator& op) {
  const int length = op.config.stoc_len;
  if (!op.has_streams || (length != 128 && length != 64) || op.levels != 128) return false;
  const auto words = static_cast<size_t>(op.stream_words);
  for (size_t row = 0; row * words < op.streams_a.size(); ++row) {
    int ones = 0;
    for (size_t w = 0; w < words; ++w) {
      const uint64_t bits = op.streams_a[row * words + w];
      ones += std::popcount(bits);
      if (row % 128 != 0 && (op.streams_a[(row - 1) * words + w] & ~bits) != 0) return false;
    }
    const int rank = static_cast<int>(row % 128 + (row % 128 >> 6));
    if (ones != (length == 128 ? rank : (rank + 1) / 2)) return false;
  }
  return true;
}

std::vector<uint64_t> SwapStreams(const ScOperator& op) {
  const auto words = static_cast<size_t>(op.stream_words);
  const auto levels = static_cast<size_t>(op.levels);
  const auto length = static_cast<size_t>(op.config.stoc_len);
  std::vector<uint64_t> swapped(op.streams_a.size());
  std::vector<size_t> order(length);  // bits of side a's streams
  std::vector<size_t> first(length);  // the first level that has the bit
  for (size_t mask = 0; mask < static_cast<size_t>(op.masks); ++mask) {
    for (size_t bit = 0; bit < length; ++bit) {
      const auto is_set = [&](size_t level) {
        return (op.streams_a[(mask * levels + level) * words + bit / 64] >> (bit % 64) & 1) != 0;
      };
      first[bit] = 0;
      while (first[bit] < levels && !is_set(first[bit])) ++first[bit];
    }
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return first[a] < first[b]; });
    for (size_t b = 0; b < levels; ++b) {
      const size_t rank = op.ranks_b[mask * levels + b];
      uint64_t* to = &swapped[(mask * levels + b) * words];
      for (size_t i = 0; i < length; ++i) {
        if (order[i] < rank) to[i / 64] |= uint64_t{1} << (i % 64);
      }
    }
  }
  return swapped;
}

}  // namespace stoch
