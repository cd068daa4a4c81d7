// SPDX-License-Identifier: Apache-2.0
// What the prefill kernels are launched with: tasks, streams and the split of the work over clusters.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/sc/format/task.h"
#include "kernels/cuda/sc/tensor_core/streams.h"
#include "kernels/plan/sc_linear_plan.h"

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

// How tiles of kSuperRows x kPrefillTokens go to clusters. Each cluster takes `full` whole tiles; what remains, the
// narrower tiles of the last tokens included, is cut in ranges of equal cost. The y of a cut tile passes from piece to
// piece through memory, in chunk order: a tile's first piece runs before everything else, a later one after at least as
// many whole tiles as its number in the tile, when the piece before it is long done. So no cluster waits in practice,
// and the bits are those of one pass over the chunks.
struct PrefillSchedule {
  int clusters = 1;
  int supers = 0;  // super tiles of all tasks
  int tiles = 0;   // supers * token tiles; the super tile varies fastest, so that running clusters share activations
  int full = 0;
  int chunks = 0;
  int last_width = kPrefillWidth;  // of the tiles of the last tokens, in 64 tokens
  // The rest, tiles full * clusters and on, along one axis of cost; a chunk of a tile costs its width (every tile's the
  // same where weigh_last is not set).
  bool weigh_last = false;
  int rest_wide = 0;  // of its tiles, those before the last tokens' (all of them without weigh_last)
  int rest_cost = 0;
  int extra = 0;  // cost of a cluster's range
  int max_steps = 0;

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
  STOCH_LAYOUT_FN int wide_cost() const { return kPrefillWidth * chunks; }
  STOCH_LAYOUT_FN int last_cost() const { return (weigh_last ? last_width : kPrefillWidth) * chunks; }
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
    if (index < full) return MakePiece(index * clusters + cluster, 0, chunks, 0);
    if (index < full + whole) return MakePiece(first_rest + first_whole + index - full, 0, chunks, 0);
    return {};
  }
};

// The split of `supers` times as many tiles as `tokens` need, for `clusters` clusters that run at the same time.
PrefillSchedule MakePrefillSchedule(int clusters, int supers, int tokens, int chunks);

struct PrefillArgs {
  ScKernelTask tasks[kMaxScTasks];
  int task_count = 0;
  ScStreams streams;
  PrefillSchedule schedule;
  float gain = 0;
  // Ranks of the weights' levels where they are not DirectRanks: ScTables::ranks [masks][levels].
  const uint16_t* ranks = nullptr;
  int masks = 1;
  int levels = 128;
  uint32_t minus_one = ~0u;  // a constant that the compiler does not know to be one: see MultiplyAdd
  // Set by LaunchPrefillWgmma. Every warpgroup starts a chunk a stage behind the one before it, so that their epilogues
  // (the chunk's scales) fall apart in time and the tensor cores never idle for all three.
  bool stagger = false;
  float* partial =
      nullptr;  // [rest][kPrefillCluster][accumulators][consumers]: y of cut tiles, in the order threads hold it
  int* flags = nullptr;  // [rest][kPrefillFlags]: pieces done, by warp
};

// wgmma b1 (sm_90a). Requires streams.tile_tokens = kPrefillTokens and every cluster of the schedule resident.
void LaunchPrefillWgmma(DeviceContext& ctx, const ScPlan& plan, const PrefillArgs& args);
int64_t MaxPrefillClusters(DeviceContext& ctx, const ScPlan& plan, const PrefillArgs& args);

// mma.sync b1 (sm_80 and newer); any tile_tokens; ignores the schedule.
void LaunchPrefillMma(cudaStream_t stream, const PrefillArgs& args);

}  // namespace stoch::cuda
