// SPDX-License-Identifier: Apache-2.0
// The tiles of the prefill kernels and how they are split over clusters, by the host or by the device.
#pragma once

#include <cstdint>

#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

inline constexpr int kPrefillGroups = 2;                  // consumer warpgroups of a block, 64 weight rows each
inline constexpr int kPrefillRows = 64 * kPrefillGroups;  // weight rows of a block
inline constexpr int kPrefillCluster = 2;                 // blocks that share every copy of the activations
inline constexpr int kSuperRows = kPrefillRows * kPrefillCluster;
inline constexpr int kPrefillTokens = 192;
inline constexpr int kPrefillWidth = kPrefillTokens / 64;
inline constexpr int kPrefillFlags = kPrefillCluster * kPrefillGroups * 4;  // of a cut tile: one for each warp
static_assert(kSuperRows == kPrefillSuperRows && kPrefillTokens == kPrefillTileTokens);
static_assert(kPrefillFlags == kPrefillTileFlags);
inline constexpr int kPrefillPlaces = 96;  // clusters of PrefillSchedule::places: 66 of an H100

// Cost of a chunk of a tile of so many times 64 tokens, in twelfths of a full one: thermometers are made once for all its
// tokens (28672 x 4096 at 128 cycles, one H100: 64, 128 and 192 tokens take 0.39, 0.45 and 0.57 ms).
STOCH_LAYOUT_FN int PrefillChunkCost(int width) { return width == 1 ? 8 : width == 2 ? 9 : 12; }

// How tiles of kSuperRows x kPrefillTokens go to clusters. Each cluster takes `full` whole tiles; what remains, the
// narrower tiles of the last tokens included, is cut in ranges of equal cost. The y of a cut tile passes from piece to
// piece through memory, in chunk order: a tile's first piece runs before everything else, a later one after at least as
// many whole tiles as its number in the tile, when the piece before it is long done. So no cluster waits in practice,
// and the bits are those of one pass over the chunks.
//
// Clusters whose tiles have the same tokens read the same activations, which leave the L2 (49 MB of a tile of 14336
// dimensions) before another cluster comes that is far behind. So whole tiles go to clusters in order of when they begin
// with them, and tiles of many chunks are cut at the same few places (AlignedRange).
struct PrefillSchedule {
  int clusters = 1;
  int supers = 0;  // super tiles of all tasks
  int tiles = 0;   // supers * token tiles; the super tile varies fastest, so that running clusters share activations
  int full = 0;
  int chunks = 0;
  int last_width = kPrefillWidth;  // of the tiles of the last tokens, in 64 tokens
  // The rest, tiles full * clusters and on, along one axis of cost: PrefillChunkCost (every tile's the same where weigh_last is
  // not set).
  bool weigh_last = false;
  int rest_wide = 0;  // of its tiles, those before the last tokens' (all of them without weigh_last)
  int rest_cost = 0;
  int extra = 0;  // cost of a cluster's range
  int max_steps = 0;
  bool in_places = false;
  uint8_t places[kPrefillPlaces] = {};  // of clusters among those that begin whole tiles, where in_places

  struct Piece {
    int tile = 0;
    int width = kPrefillWidth;
    int chunk_begin = 0;
    int chunk_end = 0;  // begin == end: nothing to do
    int number = 0;     // of this piece in its tile
  };
  struct Place {
    int tile = 0;  // of the rest
    int chunk = 0;
  };

  STOCH_LAYOUT_FN int rest() const { return tiles - full * clusters; }
  STOCH_LAYOUT_FN int wide_cost() const { return PrefillChunkCost(kPrefillWidth) * chunks; }
  STOCH_LAYOUT_FN int last_cost() const { return PrefillChunkCost(weigh_last ? last_width : kPrefillWidth) * chunks; }
  STOCH_LAYOUT_FN int start_cost(int tile) const {
    return tile < rest_wide ? tile * wide_cost() : rest_wide * wide_cost() + (tile - rest_wide) * last_cost();
  }
  STOCH_LAYOUT_FN Place PlaceOf(int cost) const {
    const bool wide = cost < rest_wide * wide_cost();
    const int tile = wide ? cost / wide_cost() : rest_wide + (cost - rest_wide * wide_cost()) / last_cost();
    const int each = (wide ? wide_cost() : last_cost()) / chunks;
    return {tile, (cost - start_cost(tile) + each - 1) / each};
  }
  STOCH_LAYOUT_FN Piece MakePiece(int tile, int begin, int end, int number) const {
    return {tile, tile >= tiles - supers ? last_width : kPrefillWidth, begin, end, number};
  }
  // Step `step` of `cluster`, 0 <= step < max_steps.
  STOCH_LAYOUT_FN Piece At(int cluster, int step) const {
    const int begin = cluster * extra < rest_cost ? cluster * extra : rest_cost;
    const int end = begin + extra < rest_cost ? begin + extra : rest_cost;
    Place from, to;
    if (begin < end) {
      from = PlaceOf(begin);
      to = PlaceOf(end);
    }
    const int first_rest = full * clusters;
    if (step == 0) {  // the tile that the range begins and the next cluster ends
      return from.tile < to.tile || from.chunk == 0 ? MakePiece(first_rest + to.tile, 0, to.chunk, 0) : Piece{};
    }
    const int first_whole = from.chunk == 0 ? from.tile : from.tile + 1;
    const int whole = to.tile > first_whole ? to.tile - first_whole : 0;
    int index = step - 1;
    if (from.chunk > 0) {  // the tile that an earlier cluster began
      const int number = cluster - start_cost(from.tile) / extra;
      const int slot = number < full ? number : full;
      if (index == slot) {
        return MakePiece(first_rest + from.tile, from.chunk, from.tile < to.tile ? chunks : to.chunk, number);
      }
      if (index > slot) --index;
    }
    if (index < full) return MakePiece(index * clusters + (in_places ? places[cluster] : cluster), 0, chunks, 0);
    if (index < full + whole) return MakePiece(first_rest + first_whole + index - full, 0, chunks, 0);
    return {};
  }
};

// From so many chunks on, what a tile reads of activations (42 MB at 96 chunks of 128 dimensions) leaves the L2 before a
// cluster that is a tile behind comes.
inline constexpr int kAlignedChunks = 96;

// The shortest range from `even` on that is a simple fraction of a tile and makes `whole` + `even` at most a 128th longer,
// or `even`. With ranges of 5/8, every fifth tile is cut at the same chunks, so that clusters go through the same tokens side
// by side: down_proj of 8B, 2048 tokens, reads 1.8 instead of 3.3 GB (docs/tuning/prompt.md).
STOCH_LAYOUT_FN int AlignedRange(int even, int tile_cost, int whole) {
  for (int parts = 1; parts <= 8; ++parts) {
    const int count = (even * parts + tile_cost - 1) / tile_cost;
    const int range = (count * tile_cost + parts - 1) / parts;
    if (range - even <= (whole + even) / 128) return range;
  }
  return even;
}

// The split of `supers` times as many tiles as `tokens` need, for `clusters` clusters that run at the same time.
// Requires: all of them positive.
STOCH_LAYOUT_FN PrefillSchedule MakePrefillSchedule(int clusters, int supers, int tokens, int chunks) {
  const auto least = [](int a, int b) { return a < b ? a : b; };
  PrefillSchedule s;
  const int token_tiles = (tokens + kPrefillTokens - 1) / kPrefillTokens;
  s.supers = supers;
  s.tiles = supers * token_tiles;
  s.clusters = least(clusters, s.tiles);
  s.chunks = chunks;
  s.last_width = (tokens - (token_tiles - 1) * kPrefillTokens + 63) / 64;
  const int wide_tiles = s.tiles - supers;
  s.weigh_last = wide_tiles >= s.clusters;
  s.full = (s.weigh_last ? wide_tiles : s.tiles) / s.clusters;
  s.rest_wide = (s.weigh_last ? wide_tiles : s.tiles) - s.full * s.clusters;
  s.rest_cost = s.start_cost(s.rest());
  // A range no shorter than a tile's chunks over the steps a piece can be placed in keeps pieces apart in time.
  const int even = (s.rest_cost + s.clusters - 1) / s.clusters;
  const int apart = (s.wide_cost() + s.full) / (s.full + 1);
  // At least a chunk, so that no piece between two others is empty.
  const int least_range = apart > PrefillChunkCost(kPrefillWidth) ? apart : PrefillChunkCost(kPrefillWidth);
  s.extra = even > least_range ? even : least_range;
  if (chunks >= kAlignedChunks) s.extra = AlignedRange(s.extra, s.wide_cost(), s.full * s.wide_cost());
  s.max_steps = s.full + 2 + s.extra / s.last_cost() + 1;
  return s;
}

// Puts clusters in the order in which they begin whole tiles: what is in front of those is a piece of a cut one.
inline void SortPlaces(PrefillSchedule* s) {
  if (s->clusters > kPrefillPlaces) return;
  int cost[kPrefillPlaces];
  for (int c = 0; c < s->clusters; ++c) {
    const PrefillSchedule::Piece first = s->At(c, 0);
    cost[c] = PrefillChunkCost(first.width) * (first.chunk_end - first.chunk_begin);
  }
  for (int c = 0; c < s->clusters; ++c) {
    int place = 0;
    for (int other = 0; other < s->clusters; ++other) {
      place += cost[other] < cost[c] || (cost[other] == cost[c] && other < c) ? 1 : 0;
    }
    s->places[c] = static_cast<uint8_t>(place);
  }
  s->in_places = true;
}

}  // namespace stoch::cuda
