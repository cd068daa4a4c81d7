// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/attention/ring.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/math/reduce.h"
#include "kernels/stripes.h"

namespace stoch {
namespace {

constexpr int64_t kWord = sizeof(uint32_t);
// Most bytes of the scores of rows at once; a single row may take more.
constexpr int64_t kScoreBytes = int64_t{64} << 20;

bool IsExact(const KvCacheSpec& spec) { return spec.mode == AttentionMode::kExact; }

// Positions that a window has room for, over all its KV heads, if one KV head of the longest context does not need
// more. The environment variable STOCH_TEST_RING_POSITIONS replaces kRingPositions.
int64_t PositionsOf(const KvCacheSpec& spec) {
  static const char* const value = std::getenv("STOCH_TEST_RING_POSITIONS");
  static const int64_t positions = value == nullptr ? kRingPositions : std::atoll(value);
  return IsExact(spec) ? positions / kWord : positions;
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
  return positions * (IsExact(spec) ? 2 * spec.head_dim : spec.head_dim / 2 + spec.key_scales + 1);
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

RingLayout::RingLayout(const KvCacheSpec& spec, int num_heads, const PassLimits& limits) {
  const bool exact = IsExact(spec);
  const int64_t window_pages = RingPages(spec, limits);
  const int64_t window_positions = window_pages * spec.page_tokens;
  const int64_t numbers = window_positions * spec.head_dim * (exact ? kWord : 1);
  keys = Take(numbers);
  values = Take(numbers);
  key_scales = Take(exact ? 0 : window_positions * spec.key_scales * kWord);
  value_scales = Take(exact ? 0 : window_positions * kWord);
  window_bytes = end;
  end *= kRingWindows;
  slabs = Take(window_pages * RingPageWords(spec) * kWord);
  slab_bytes = end - slabs;
  end = slabs + kRingSlabs * slab_bytes;
  const int64_t own_rows = MaxDealtRows(limits.max_rows, limits.max_sequences, spec.stripes);
  positions = Take(own_rows * kWord);
  row_sequence = Take(own_rows * kWord);
  rows = Take(own_rows * kPassRowBytes);
  slots = Take(own_rows * kWord);
  tiles = Take(FirstDealtTile(limits.max_sequences, own_rows) * kQueryTileBytes);
  sequences = Take(limits.max_sequences * kPassSequenceBytes);
  pages = Take(limits.max_pages_per_sequence * kWord);
  if (exact) return;
  queries = Take(limits.max_rows * kDealtQueryBytes);
  const int64_t at_once = std::min(limits.max_rows, kQueryRowsAtOnce);
  areas = Take(ShareLayout(spec, num_heads, at_once, at_once).end);
  area_bytes = end - areas;
  end = areas + kQueryAreas * area_bytes;
}

RingRoute PlanRingRoute(const AttentionShape& shape, RingRoute asked, int64_t most_rows) {
  switch (asked) {
    case RingRoute::kRing:
    case RingRoute::kQuery: return asked;
    case RingRoute::kAuto: break;
  }
  return HasQueryRoute(shape) && most_rows <= kQueryRows ? RingRoute::kQuery : RingRoute::kRing;
}

int64_t QueryScoreBytes(const KvCacheSpec& spec, int num_heads, const PassLimits& limits) {
  if (IsExact(spec)) return 0;
  const int64_t context = limits.max_pages_per_sequence * spec.page_tokens;
  const int64_t row_bytes = num_heads * (context / spec.stripes) * kWord;
  const int64_t at_once = std::min(limits.max_rows, kQueryRowsAtOnce);
  return row_bytes * std::min(at_once, std::max<int64_t>(1, kScoreBytes / row_bytes));
}

int64_t QueryScoreRows(const KvCacheSpec& spec, int num_heads, const PassLimits& limits, int64_t stride) {
  return std::min(kQueryRowsAtOnce, QueryScoreBytes(spec, num_heads, limits) / (num_heads * stride * kWord));
}

AttentionLimits RingAttentionLimits(const KvCacheSpec& spec, const PassLimits& limits, int heads) {
  const int64_t pages = std::min(limits.max_pages_per_sequence, RingPages(spec, limits) / heads);
  return {MaxDealtRows(limits.max_rows, limits.max_sequences, spec.stripes), limits.max_sequences,
          pages * spec.page_tokens};
}

int64_t RingWorkspaceBytes(const GpuTraits& gpu, const KvCacheSpec& spec, int num_heads, const PassLimits& limits) {
  PassLimits whole = limits;
  whole.max_rows *= spec.stripes;  // rows of all devices, at most
  int64_t most = QueryScoreBytes(spec, num_heads, whole);
  const AttentionLayers layers = MakeAttentionLayers(spec, num_heads);
  for (int heads = 1; heads <= std::max(1, spec.num_kv_heads); ++heads) {
    if (heads > 1 && spec.num_kv_heads % heads != 0) continue;
    AttentionLimits attention = RingAttentionLimits(spec, limits, heads);
    attention.max_rows = limits.max_rows;  // limits.max_rows counts the rows of one device already
    for (AttentionShape shape : layers.shapes) {
      shape.num_kv_heads = heads;  // KV heads of a window, and the query heads that read them
      shape.num_heads = num_heads / std::max(1, spec.num_kv_heads) * heads;
      shape.longest = attention.max_context;
      most = std::max(most, AttentionScratchBytes(gpu, shape, attention));
    }
  }
  return most;
}

}  // namespace stoch
