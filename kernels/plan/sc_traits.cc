// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/sc_traits.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/sc/closed_form/int8_form.h"
#include "kernels/sc/closed_form/tile_form.h"
#include "kernels/sc/sc_residual.h"

namespace stoch {
namespace {

// Number of ones in stream i of side a.
int OnesOf(const ScOperator& op, size_t i) {
  int ones = 0;
  for (int w = 0; w < op.stream_words; ++w)
    ones += std::popcount(op.streams_a[i * static_cast<size_t>(op.stream_words) + static_cast<size_t>(w)]);
  return ones;
}

ScTraits FindTraits(const ScOperator& op) {
  ScTraits traits;
  traits.code = op.code;
  traits.chunk_d = op.config.chunk_d;
  traits.scope_rows = op.config.granularity == ScGranularity::kPerRow ? op.config.group_a : 0;
  traits.stoc_len = op.config.stoc_len;
  traits.masks = op.masks;
  traits.levels = op.levels;
  traits.max_count = op.max_count;
  traits.has_streams = op.has_streams;
  traits.has_bytes = CountsFitBytes(op);
  traits.has_quarters = CountsAreStaircases(op);
  traits.has_residuals = MakeScResiduals(op).has_value();
  traits.direct_ranks = op.has_streams && RanksAreDirect(op);
  traits.has_tile_form = HasTileForm(op);
  traits.has_int8_form = HasInt8Form(op);
  traits.has_common_ranks = op.has_streams && op.levels <= 128 && RanksAreCommon(op);
  return traits;
}

}  // namespace

ScTraits MakeScTraits(const ScOperator& op) {
  static std::mutex mutex;
  static std::vector<std::pair<ScConfig, ScTraits>> kept;
  constexpr size_t kMostKept = 64;
  const std::lock_guard lock(mutex);
  const auto found = std::find_if(kept.begin(), kept.end(), [&](const auto& each) { return each.first == op.config; });
  if (found != kept.end()) return found->second;
  if (kept.size() == kMostKept) kept.erase(kept.begin());
  return kept.emplace_back(op.config, FindTraits(op)).second;
}

bool CountsFitBytes(const ScOperator& op) {
  if (op.code == ScCode::kOffset) return false;
  const size_t side = static_cast<size_t>(op.levels);
  for (size_t i = 0; i < op.counts.size(); ++i) {
    const bool top = i % (side * side) == side * side - 1;
    if (op.counts[i] > 255 && !(top && op.counts[i] == 256)) return false;
  }
  return true;
}

bool CountsAreStaircases(const ScOperator& op) {
  if (op.code != ScCode::kSignMagnitude || op.levels > 128) return false;
  // A quarter may begin at any count; only the steps within a quarter are checked.
  constexpr int kQuarter = 32;
  for (int mask = 0; mask < op.masks; ++mask) {
    for (int a = 0; a < op.levels; ++a) {
      for (int b = 0; b + 1 < op.levels; ++b) {
        if (b % kQuarter == kQuarter - 1) continue;
        const int rise = op.count(mask, a, b + 1) - op.count(mask, a, b);
        if (rise != 0 && rise != 1) return false;
      }
    }
  }
  return true;
}

bool RanksAreCommon(const ScOperator& op) {
  for (auto mask = op.ranks_b.begin(); mask != op.ranks_b.end(); mask += op.levels) {
    if (!std::equal(mask, mask + op.levels, op.ranks_b.begin())) return false;
  }
  return true;
}

bool RanksAreDirect(const ScOperator& op) {
  const auto length = static_cast<size_t>(op.config.stoc_len);
  if (length % 32 != 0 || length > 128 || op.levels != 128) return false;
  const bool depends_on_mask = length == 32 || length == 96;
  if (depends_on_mask && op.masks != 64) return false;
  for (size_t i = 0; i < op.ranks_b.size(); ++i) {
    const size_t q = i % 128;
    const size_t of_128 = q + (q >> 6);
    const size_t scrambled = i / 128 / 32 % 2 * 2;
    const size_t rank = length == 128  ? of_128
                        : length == 96 ? (of_128 + 1) / 2 + (of_128 + scrambled) / 4
                        : length == 64 ? (of_128 + 1) / 2
                                       : (of_128 + 3 - scrambled) / 4;
    if (op.ranks_b[i] != rank) return false;
    if (length == 128 && static_cast<size_t>(OnesOf(op, i)) != of_128) return false;
  }
  return true;
}

}  // namespace stoch
