// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/ring/places.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/math/reduce.h"
#include "kernels/stripes.h"

namespace stoch::cuda {
namespace {

constexpr int64_t kWord = sizeof(uint32_t);
constexpr int64_t kScoreBytes = int64_t{64} << 20;  // of all rows at once, where one alone does not take more

// What a window has room for beyond one head of the longest context; STOCH_TEST_RING_POSITIONS=N: that.
int64_t PositionsOf(const KvCacheSpec& spec) {
  static const char* const value = std::getenv("STOCH_TEST_RING_POSITIONS");
  static const int64_t positions = value == nullptr ? kRingPositions : std::atoll(value);
  return spec.mode == AttentionMode::kExact ? positions / kWord : positions;
}

}  // namespace

int64_t RingPages(const KvCacheSpec& spec, const PassLimits& limits) {
  const int64_t longest = limits.max_pages_per_sequence;
  return std::max(longest, std::min(longest * spec.num_kv_heads, PositionsOf(spec) / spec.page_tokens));
}

int RingHeads(const KvCacheSpec& spec, const PassLimits& limits, int64_t pages) {
  const int64_t room = RingPages(spec, limits);
  int heads = spec.num_kv_heads;
  while (heads > 1 && (spec.num_kv_heads % heads != 0 || heads * pages > room)) --heads;
  return heads;
}

int64_t RingPageWords(const KvCacheSpec& spec) {
  const int64_t positions = spec.page_tokens / spec.stripes;
  const bool exact = spec.mode == AttentionMode::kExact;
  return 2 * positions * (exact ? spec.head_dim : spec.head_dim / 4 + 1);
}

int64_t RingPlaces::Take(int64_t bytes) {
  constexpr int64_t kAlignment = 256;
  const int64_t at = end_;
  end_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return at;
}

ShareLayout::ShareLayout(const KvCacheSpec& spec, int num_heads, int64_t rows, int64_t own_rows) {
  const int64_t heads = rows * num_heads;
  weight_max = score_max + heads * kWord;
  sums = weight_max + heads * kWord;
  lanes = cleared_end = sums + heads * spec.head_dim * kWord;
  words = lanes + heads * (kRowLanes / spec.stripes) * kWord;
  scales = words + own_rows * num_heads * spec.head_dim;
  end = scales + own_rows * num_heads * kWord;
}

QueryShare ShareLayout::At(uint8_t* share) const {
  QueryShare at;
  at.words = reinterpret_cast<uint32_t*>(share + words);
  at.scales = reinterpret_cast<float*>(share + scales);
  at.score_max = reinterpret_cast<uint32_t*>(share + score_max);
  at.lanes = reinterpret_cast<float*>(share + lanes);
  at.weight_max = reinterpret_cast<uint32_t*>(share + weight_max);
  at.sums = reinterpret_cast<int32_t*>(share + sums);
  return at;
}

RingPlaces::RingPlaces(const KvCacheSpec& spec, int num_heads, const PassLimits& limits)
    : exact_(spec.mode == AttentionMode::kExact), num_heads_(num_heads) {
  const int64_t pages = RingPages(spec, limits);
  const int64_t positions = pages * spec.page_tokens;
  const int64_t numbers = positions * spec.head_dim * (exact_ ? kWord : 1);
  keys_ = Take(numbers);
  values_ = Take(numbers);
  key_scales_ = Take(exact_ ? 0 : positions * kWord);
  value_scales_ = Take(exact_ ? 0 : positions * kWord);
  window_bytes_ = end_;
  end_ *= kRingWindows;
  slabs_ = end_;
  slab_bytes_ = Take(pages * RingPageWords(spec) * kWord);
  slab_bytes_ = end_ - slabs_;
  end_ = slabs_ + kRingSlabs * slab_bytes_;
  const int64_t rows = MaxDealtRows(limits.max_rows, limits.max_sequences, spec.stripes);
  positions_ = Take(rows * kWord);
  row_sequence_ = Take(rows * kWord);
  rows_ = Take(rows * static_cast<int64_t>(sizeof(PassRow)));
  slots_ = Take(rows * kWord);
  tiles_ = Take(FirstDealtTile(limits.max_sequences, rows) * static_cast<int64_t>(sizeof(QueryTile)));
  sequences_ = Take(limits.max_sequences * static_cast<int64_t>(sizeof(PassSequence)));
  pages_ = Take(limits.max_pages_per_sequence * kWord);
  if (exact_) return;
  queries_ = Take(limits.max_rows * static_cast<int64_t>(sizeof(DealtQuery)));
  const int64_t at_once = std::min(limits.max_rows, kQueryRowsAtOnce);
  areas_ = end_;
  area_bytes_ = Take(ShareLayout(spec, num_heads, at_once, at_once).end);
  area_bytes_ = end_ - areas_;
  end_ = areas_ + kQueryAreas * area_bytes_;
  const int64_t context = limits.max_pages_per_sequence * spec.page_tokens;
  const int64_t row_bytes = num_heads * (context / spec.stripes) * kWord;
  scores_bytes_ = row_bytes * std::min(at_once, std::max<int64_t>(1, kScoreBytes / row_bytes));
  scores_ = Take(scores_bytes_);
}

int64_t RingPlaces::QueryRows(int64_t stride) const {
  return std::min(kQueryRowsAtOnce, scores_bytes_ / (num_heads_ * stride * kWord));
}

DealtPass RingPlaces::dealt(uint8_t* scratch) const {
  DealtPass dealt;
  dealt.positions = reinterpret_cast<int32_t*>(scratch + positions_);
  dealt.row_sequence = reinterpret_cast<int32_t*>(scratch + row_sequence_);
  dealt.rows = reinterpret_cast<PassRow*>(scratch + rows_);
  dealt.slots = reinterpret_cast<int32_t*>(scratch + slots_);
  dealt.tiles = reinterpret_cast<QueryTile*>(scratch + tiles_);
  dealt.sequences = reinterpret_cast<PassSequence*>(scratch + sequences_);
  dealt.pages = reinterpret_cast<int32_t*>(scratch + pages_);
  return dealt;
}

KvView RingPlaces::window(uint8_t* scratch, int index, const KvView& cache, int kv_heads) const {
  uint8_t* const at = scratch + index * window_bytes_;
  KvView view = cache;  // its shape and swapped streams
  view.num_kv_heads = kv_heads;
  if (exact_) {
    view.k = reinterpret_cast<float*>(at + keys_);
    view.v = reinterpret_cast<float*>(at + values_);
    return view;
  }
  view.k_words = reinterpret_cast<uint32_t*>(at + keys_);
  view.v_words = reinterpret_cast<uint32_t*>(at + values_);
  view.k_scales = reinterpret_cast<float*>(at + key_scales_);
  view.v_scales = reinterpret_cast<float*>(at + value_scales_);
  return view;
}

}  // namespace stoch::cuda
