// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/swap.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/sc/number_source.h"
#include "kernels/sc/pair_answers.h"

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
    // Bits that a level brings together by cycle: a shorter stream (SwappedRanks) may end between them.
    const std::vector<int> values = ComparatorValues(op.config, ScSide::kB, static_cast<int>(mask));
    std::vector<size_t> cycle(length);
    std::iota(cycle.begin(), cycle.end(), size_t{0});
    std::stable_sort(cycle.begin(), cycle.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return first[a] != first[b] ? first[a] < first[b] : cycle[a] < cycle[b]; });
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

std::optional<std::vector<uint8_t>> SwappedRanks(const ScOperator& shorter, const ScOperator& longer) {
  if (!shorter.has_streams || !CanSwap(longer) || shorter.levels != longer.levels || shorter.masks > longer.masks ||
      shorter.config.stoc_len > longer.config.stoc_len) {
    return std::nullopt;
  }
  const auto levels = static_cast<size_t>(longer.levels);
  const auto masks = static_cast<size_t>(longer.masks);
  const auto words = static_cast<size_t>(longer.stream_words);
  const std::vector<uint64_t> streams = SwapStreams(longer);
  std::vector<uint8_t> ranks(masks * levels);
  std::vector<int> ones_before(static_cast<size_t>(longer.config.stoc_len) + 1);
  for (size_t mask = 0; mask < masks; ++mask) {
    const size_t own = mask & static_cast<size_t>(shorter.masks - 1);
    for (size_t a = 0; a < levels; ++a) {
      const auto own_words = static_cast<size_t>(shorter.stream_words);
      int ones = 0;
      for (size_t w = 0; w < own_words; ++w)
        ones += std::popcount(shorter.streams_a[(own * levels + a) * own_words + w]);
      ranks[mask * levels + a] = static_cast<uint8_t>(ones);
    }
    for (size_t b = 0; b < levels; ++b) {
      const uint64_t* stream = &streams[(mask * levels + b) * words];
      for (size_t i = 0; i + 1 < ones_before.size(); ++i) {
        ones_before[i + 1] = ones_before[i] + static_cast<int>(stream[i / 64] >> (i % 64) & 1);
      }
      for (size_t a = 0; a < levels; ++a) {
        const int count = shorter.count(static_cast<int>(own), static_cast<int>(a), static_cast<int>(b));
        if (ones_before[ranks[mask * levels + a]] != count) return std::nullopt;
      }
    }
  }
  return ranks;
}

bool CanSwapWithin(const ScOperator& shorter, const ScOperator& longer) {
  static PairAnswers answers;
  return answers.Get(shorter, longer, [](const auto& a, const auto& b) { return SwappedRanks(a, b).has_value(); });
}

}  // namespace stoch
