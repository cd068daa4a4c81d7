// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/sc_nested.h"

#include <algorithm>
#include <numeric>

#include "kernels/sc/number_source.h"
#include "kernels/sc/pair_answers.h"

namespace stoch {
namespace {

// Cycles in the order of streams_a.
std::vector<int> OrderOf(const std::vector<int>& values_b) {
  std::vector<int> order(values_b.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int i, int j) { return values_b[static_cast<size_t>(i)] < values_b[static_cast<size_t>(j)]; });
  return order;
}

// Whether the first ranks of `longer` hold as many ones of the stream as `shorter` counts.
bool CountsAreEqual(const ScOperator& shorter, const ScOperator& longer, int mask, int a, const uint64_t* stream) {
  std::vector<int> ones_before(1, 0);
  for (int j = 0; j < longer.config.stoc_len; ++j) {
    ones_before.push_back(ones_before.back() + static_cast<int>(stream[j / 64] >> (j % 64) & 1));
  }
  const int own = mask & (shorter.masks - 1);
  const uint16_t* ranks = longer.ranks_b.data() + static_cast<size_t>(mask) * static_cast<size_t>(longer.levels);
  for (int b = 0; b < longer.levels; ++b) {
    if (ones_before[ranks[b]] != shorter.count(own, a, b)) return false;
  }
  return true;
}

}  // namespace

std::optional<std::vector<uint64_t>> NestStreams(const ScOperator& shorter, const ScOperator& longer) {
  if (!shorter.has_streams || !longer.has_streams || shorter.levels != longer.levels || shorter.masks > longer.masks ||
      shorter.config.stoc_len > longer.config.stoc_len) {
    return std::nullopt;
  }
  const auto levels = static_cast<size_t>(longer.levels);
  const auto words = static_cast<size_t>(longer.stream_words);
  std::vector<uint64_t> streams(static_cast<size_t>(longer.masks) * levels * words);
  for (int mask = 0; mask < longer.masks; ++mask) {
    const int own = mask & (shorter.masks - 1);
    const std::vector<int> order = OrderOf(ComparatorValues(shorter.config, ScSide::kB, own));
    const std::vector<int> longer_order = OrderOf(ComparatorValues(longer.config, ScSide::kB, mask));
    std::vector<size_t> place(longer_order.size());
    for (size_t j = 0; j < longer_order.size(); ++j) place[static_cast<size_t>(longer_order[j])] = j;
    for (size_t a = 0; a < levels; ++a) {
      const uint64_t* from = shorter.streams_a.data() +
                             (static_cast<size_t>(own) * levels + a) * static_cast<size_t>(shorter.stream_words);
      uint64_t* to = streams.data() + (static_cast<size_t>(mask) * levels + a) * words;
      for (size_t j = 0; j < order.size(); ++j) {
        const size_t at = place[static_cast<size_t>(order[j])];
        if ((from[j / 64] >> (j % 64) & 1) != 0) to[at / 64] |= uint64_t{1} << (at % 64);
      }
      if (!CountsAreEqual(shorter, longer, mask, static_cast<int>(a), to)) return std::nullopt;
    }
  }
  return streams;
}

bool StreamsNest(const ScOperator& shorter, const ScOperator& longer) {
  static PairAnswers answers;
  return answers.Get(shorter, longer, [](const auto& a, const auto& b) { return NestStreams(a, b).has_value(); });
}

}  // namespace stoch
