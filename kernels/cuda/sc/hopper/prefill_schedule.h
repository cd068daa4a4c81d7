// SPDX-License-Identifier: Apache-2.0
// The tiles of the prefill kernels, and their split over clusters, computed on the host or on the device.
//
// A super tile is kSuperRows weight rows of one task, which the blocks of a cluster share; a tile is a super tile x
// kPrefillTokens tokens.
#pragma once

#include <cstdint>

#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

inline constexpr int kPrefillGroups = 2;                  // consumer warpgroups of a block, 64 weight rows each
inline constexpr int kPrefillRows = 64 * kPrefillGroups;  // weight rows of a block
inline constexpr int kPrefillCluster = 2;                 // blocks of a cluster, which share each stage of activations
inline constexpr int kSuperRows = kPrefillRows * kPrefillCluster;           // weight rows of a tile
inline constexpr int kPrefillTokens = 192;                                  // tokens of a tile
inline constexpr int kPrefillWidth = kPrefillTokens / 64;                   // width of a full tile, in 64 tokens
inline constexpr int kPrefillFlags = kPrefillCluster * kPrefillGroups * 4;  // flags of a cut tile, one a consumer warp
static_assert(kSuperRows == kPrefillSuperRows && kPrefillTokens == kPrefillTileTokens);
static_assert(kPrefillFlags == kPrefillTileFlags);
inline constexpr int kPrefillPlaces = 96;  // clusters that PrefillSchedule::places has room for; an H100 has 66

// Cost of one chunk of a tile of 64 * width tokens, in twelfths of the cost at 192 tokens. Fewer tokens do not save in
// proportion, because thermometers are made once for all tokens (28672 x 4096 at 128 cycles, one H100: 64, 128 and 192
// tokens take 0.39, 0.45 and 0.57 ms).
STOCH_LAYOUT_FN int PrefillChunkCost(int width) { return width == 1 ? 8 : width == 2 ? 9 : 12; }

// The split of all tiles over clusters (a stream-K schedule). Each cluster takes `full` whole tiles; the rest of the
// tiles, the narrower ones of the last tokens among them, is cut into one contiguous range of equal cost for each
// cluster. A range is one or more pieces, a piece being consecutive chunks of one tile. The y of a cut tile passes from
// piece to piece through device memory, in chunk order. A tile's first piece runs before everything else of its
// cluster; piece n > 0 of a tile runs after n whole tiles of its cluster (after all, if there are fewer), when the
// piece before it is usually long done. So in practice no cluster waits, and the bits are those of one pass over the
// chunks.
//
// Clusters whose tiles have the same tokens read the same activations (49 MB for a tile of 14336 dimensions), which
// leave the L2 before a cluster that is several tiles late reads them. So whole tiles are assigned in the order in
// which clusters begin with whole tiles (`places`), and tiles of many chunks are cut at the same few chunks
// (AlignedRange).
struct PrefillSchedule {
  int clusters = 1;                // clusters of the launch, all resident at once
  int supers = 0;                  // super tiles of all tasks
  int tiles = 0;                   // supers * token tiles; super tiles vary fastest: running clusters share activations
  int full = 0;                    // whole tiles of each cluster
  int chunks = 0;                  // chunks of a tile
  int last_width = kPrefillWidth;  // width of the tiles of the last tokens, in 64 tokens
  // The rest is the tiles from full * clusters on. It is one axis of cost, in units of PrefillChunkCost.
  bool weigh_last = false;  // true: tiles of the last tokens cost what their width says; false: as full tiles
  int rest_wide = 0;        // tiles of the rest that cost as full ones; they come first
  int rest_cost = 0;        // cost of the rest
  int extra = 0;            // cost of each cluster's range of the rest
  int max_steps = 0;        // steps of a cluster, at most
  bool in_places = false;   // whether `places` is used
  uint8_t places[kPrefillPlaces] = {};  // [clusters] place of a cluster in the order in which they begin whole tiles

  // The work of one step: chunks chunk_begin to chunk_end - 1 of a tile.
  struct Piece {
    int tile = 0;
    int width = kPrefillWidth;  // width of the tile, in 64 tokens
    int chunk_begin = 0;
    int chunk_end = 0;  // equal to chunk_begin: nothing to do
    int number = 0;     // number of the piece in its tile
  };
  // A position on the cost axis of the rest.
  struct Place {
    int tile = 0;   // tile, counted from the first of the rest
    int chunk = 0;  // chunk of that tile
  };

  STOCH_LAYOUT_FN int rest() const { return tiles - full * clusters; }
  STOCH_LAYOUT_FN int wide_cost() const { return PrefillChunkCost(kPrefillWidth) * chunks; }
  STOCH_LAYOUT_FN int last_cost() const { return PrefillChunkCost(weigh_last ? last_width : kPrefillWidth) * chunks; }
  // The cost of the rest before its tile `tile`.
  STOCH_LAYOUT_FN int start_cost(int tile) const {
    return tile < rest_wide ? tile * wide_cost() : rest_wide * wide_cost() + (tile - rest_wide) * last_cost();
  }
  // The first chunk boundary of the rest at or after `cost`.
  STOCH_LAYOUT_FN Place PlaceOf(int cost) const {
    const bool wide = cost < rest_wide * wide_cost();
    const int tile = wide ? cost / wide_cost() : rest_wide + (cost - rest_wide * wide_cost()) / last_cost();
    const int each = (wide ? wide_cost() : last_cost()) / chunks;
    return {tile, (cost - start_cost(tile) + each - 1) / each};
  }
  STOCH_LAYOUT_FN Piece MakePiece(int tile, int begin, int end, int number) const {
    return {tile, tile >= tiles - supers ? last_width : kPrefillWidth, begin, end, number};
  }
  // The piece of step `step` of cluster `cluster`, 0 <= step < max_steps. Step 0 has the first piece of the tile that
  // the cluster's range ends in. Later steps have the whole tiles and, after as many of these as its number says, the
  // piece of the tile that the range begins in.
  STOCH_LAYOUT_FN Piece At(int cluster, int step) const {
    const int begin = cluster * extra < rest_cost ? cluster * extra : rest_cost;
    const int end = begin + extra < rest_cost ? begin + extra : rest_cost;
    Place from, to;
    if (begin < end) {
      from = PlaceOf(begin);
      to = PlaceOf(end);
    }
    const int first_rest = full * clusters;
    if (step == 0) {  // the first piece of the tile that this range begins and a later cluster's range ends
      return from.tile < to.tile || from.chunk == 0 ? MakePiece(first_rest + to.tile, 0, to.chunk, 0) : Piece{};
    }
    const int first_whole = from.chunk == 0 ? from.tile : from.tile + 1;
    const int whole = to.tile > first_whole ? to.tile - first_whole : 0;
    int index = step - 1;
    if (from.chunk > 0) {  // the range begins in the middle of a tile, which an earlier cluster began
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

// AlignedRange is used for tiles of this many chunks or more: the activations of a tile (42 MB at 96 chunks of 128
// dimensions) then leave the L2 before a cluster that is one tile late reads them.
inline constexpr int kAlignedChunks = 96;

// The cost of a cluster's range: the least multiple of tile_cost / parts that is at least `even`, for the first of
// parts = 1 to 8 with which whole + even grows by at most a 128th; `even` if there is none. `whole` is the cost of a
// cluster's whole tiles. Such ranges cut tiles at few different chunks: with ranges of 5/8 of a tile, every fifth tile
// is cut at the same chunks, so that clusters read the same activations at the same time. down_proj of 8B at 2048
// tokens then reads 1.8 GB instead of 3.3 GB (docs/tuning/prompt.md).
STOCH_LAYOUT_FN int AlignedRange(int even, int tile_cost, int whole) {
  for (int parts = 1; parts <= 8; ++parts) {
    const int count = (even * parts + tile_cost - 1) / tile_cost;
    const int range = (count * tile_cost + parts - 1) / parts;
    if (range - even <= (whole + even) / 128) return range;
  }
  return even;
}

// The schedule of `supers` super tiles x all token tiles of `tokens` tokens, for up to `clusters` clusters that are
// resident at once.
// Requires: all arguments are positive.
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
  // A range costs at least a tile's cost divided by the full + 1 steps at which a piece may run. A tile then has at
  // most one piece more than that, so each piece runs a step after the one before it, save perhaps the last.
  const int even = (s.rest_cost + s.clusters - 1) / s.clusters;
  const int apart = (s.wide_cost() + s.full) / (s.full + 1);
  // A range has at least a chunk, so that no piece in the middle of a tile is empty.
  const int least_range = apart > PrefillChunkCost(kPrefillWidth) ? apart : PrefillChunkCost(kPrefillWidth);
  s.extra = even > least_range ? even : least_range;
  if (chunks >= kAlignedChunks) s.extra = AlignedRange(s.extra, s.wide_cost(), s.full * s.wide_cost());
  s.max_steps = s.full + 2 + s.extra / s.last_cost() + 1;
  return s;
}

// Sets s->places, by the cost of each cluster's step 0, which is a piece of a cut tile before its whole tiles.
// Does nothing for more than kPrefillPlaces clusters.
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
