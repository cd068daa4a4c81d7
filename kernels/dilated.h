// SPDX-License-Identifier: Apache-2.0
// Which positions a query of dilated attention (LongNet) admits, and how often: pure functions of pairs (segment w,
// dilation r), the query head h in the model and absolute positions.
//
// A pair admits position t to the query at position n if t <= n, floor(t / w) = floor(n / w) and t mod r = h mod r. A
// position that k pairs admit counts k times (docs/sc_arithmetic.md#dilated-attention).
// Source: Ding et al., LongNet: Scaling Transformers to 1,000,000,000 Tokens, arXiv 2307.02486, section 2.2.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace stoch {

// Units: tokens. Requires: both at least 1.
struct DilatedPair {
  int64_t segment = 1;
  int64_t dilation = 1;

  friend bool operator==(const DilatedPair&, const DilatedPair&) = default;
};

inline constexpr size_t kMaxDilatedPairs = 8;

// How many pairs admit position t to a query of `head` at `position`.
inline int TimesAdmitted(std::span<const DilatedPair> pairs, int64_t head, int64_t position, int64_t t) {
  if (t > position) return 0;
  int times = 0;
  for (const DilatedPair& pair : pairs) {
    if (t / pair.segment == position / pair.segment && t % pair.dilation == head % pair.dilation) ++times;
  }
  return times;
}

// The first position whose query is in another segment of some pair than the query at `position`. Until there, what a
// query admits is what the one before it does, and perhaps itself.
inline int64_t NextSegment(std::span<const DilatedPair> pairs, int64_t position) {
  int64_t next = INT64_MAX;
  for (const DilatedPair& pair : pairs) next = std::min(next, (position / pair.segment + 1) * pair.segment);
  return next;
}

// Two heads admit the same positions, whatever the position of the query.
inline bool AdmitAlike(std::span<const DilatedPair> pairs, int64_t head, int64_t other) {
  return std::all_of(pairs.begin(), pairs.end(),
                     [=](const DilatedPair& pair) { return head % pair.dilation == other % pair.dilation; });
}

// Positions that are admitted, ascending, each once, and by how many pairs.
struct AdmittedPositions {
  std::vector<int32_t> positions;
  std::vector<uint8_t> times;

  int64_t size() const { return static_cast<int64_t>(positions.size()); }
  // The number of positions below `end`.
  int64_t Below(int64_t end) const {
    return std::lower_bound(positions.begin(), positions.end(), end) - positions.begin();
  }
};

// The positions from `first` on that a query of `head` at `position` admits. Takes time in proportion to them.
// Requires: at most kMaxDilatedPairs pairs.
inline AdmittedPositions Admitted(std::span<const DilatedPair> pairs, int64_t head, int64_t position, int64_t first) {
  std::vector<int64_t> next;  // per pair: next position that it admits
  for (const DilatedPair& pair : pairs) {
    const int64_t begin = std::max(first, position / pair.segment * pair.segment);
    const int64_t offset = (head % pair.dilation - begin % pair.dilation + pair.dilation) % pair.dilation;
    next.push_back(begin + offset);
  }
  AdmittedPositions admitted;
  for (;;) {
    const int64_t t = next.empty() ? position + 1 : *std::min_element(next.begin(), next.end());
    if (t > position) return admitted;
    uint8_t times = 0;
    for (size_t i = 0; i < pairs.size(); ++i) {
      if (next[i] != t) continue;
      next[i] += pairs[i].dilation;
      ++times;
    }
    admitted.positions.push_back(static_cast<int32_t>(t));
    admitted.times.push_back(times);
  }
}

// The number of positions from `first` on that any query of `head` at [begin, last] admits, each once, in a time that
// does not depend on it: the pairs' own less those that several admit, by inclusion and exclusion.
// Requires: as Admitted; segments, dilations and positions below 2^31.
inline int64_t CountAdmitted(std::span<const DilatedPair> pairs, int64_t head, int64_t begin, int64_t last,
                             int64_t first = 0) {
  int64_t count = 0;
  for (uint32_t some = 1; some < uint32_t{1} << pairs.size(); ++some) {
    int64_t from = first;
    int64_t step = 1;  // t mod r = h mod r for all of them: t = h mod the least common multiple
    int of = 0;
    for (size_t i = 0; i < pairs.size(); ++i) {
      if ((some >> i & 1) == 0) continue;
      from = std::max(from, begin / pairs[i].segment * pairs[i].segment);
      step = std::min(std::lcm(step, pairs[i].dilation), int64_t{1} << 31);  // beyond: head alone
      ++of;
    }
    const auto below = [&](int64_t end) {  // positions 0 <= t < end with t = head mod step
      const int64_t offset = head % step;
      return end > offset ? (end - offset + step - 1) / step : 0;
    };
    const int64_t all = from <= last ? below(last + 1) - below(from) : 0;
    count += of % 2 == 1 ? all : -all;
  }
  return count;
}

}  // namespace stoch
