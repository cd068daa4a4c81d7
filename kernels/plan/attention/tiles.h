// SPDX-License-Identifier: Apache-2.0
// Tiles of 64 rows: how kernels use shared memory, and how a batch of long sequences is cut into groups of tiles.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/plan/attention/shape.h"
#include "kernels/plan/bit_products.h"
#include "kernels/plan/gpu_traits.h"

namespace stoch {

// Tiles by mma.sync (attention/tile*.cu).
struct ScTilePlan {
  BitProducts products = BitProducts::kBinary;  // kInt8: tile_int8.cu
  int64_t score_shared_bytes = 0;
  int64_t value_shared_bytes = 0;
};
// Nullopt if tiles are not built for the streams or heads, or the device lacks shared memory.
std::optional<ScTilePlan> PlanScTiles(const GpuTraits& gpu, const AttentionShape& shape);

// A group of tiles that are computed together, so that the bytes of their scores are bounded for prompts of any length:
// `tiles` tiles of all heads or, if one tile of all heads is too large, `heads` heads of one tile, a multiple of the
// query heads that share a KV head.
struct TileGroup {
  int64_t tiles = 1;
  int64_t heads = 1;
};
// Requires: stride, the padded length of the longest tile, is at least 1.
TileGroup CutTiles(const GpuTraits& gpu, const AttentionShape& shape, int64_t stride, int64_t tiles);

// Tiles by wgmma (attention/hopper): a block takes kWideSlots (tile, head) pairs that share a KV head, and a range of
// positions. K and V are streams in memory, of some KV heads at a time.
struct WidePlan {
  int heads = 1;            // query heads of a KV head that a block takes
  int tiles = 1;            // tiles that a block takes: heads * tiles <= kWideSlots
  int parts = 1;            // blocks for all query heads of a KV head
  int64_t key_bytes = 0;    // bytes of streams of K per position and KV head, as in the next three
  int64_t first_bytes = 0;  // first words of streams of V
  int64_t other_bytes = 0;  // other words of streams of V
  int64_t code_bytes = 0;   // codes of V
  constexpr int64_t position_bytes() const { return key_bytes + first_bytes + other_bytes + code_bytes; }
  int64_t score_stage_bytes = 0;  // a stage of the pipeline of q k: 16 dimensions of kWideKeys keys
  int64_t value_stage_bytes = 0;  // a stage of the pipeline of p v: kWideValueUnits units
  int score_stages = 0;
  int value_stages = 0;
  int64_t score_shared_bytes = 0;
  int64_t value_shared_bytes = 0;
};
// Nullopt without wgmma, or if wide tiles are not built for the streams or heads. For lengths kByTile, `shape` is
// LongestShape.
std::optional<WidePlan> PlanWideTiles(const GpuTraits& gpu, const AttentionShape& shape);
// Whether `plan` takes a batch of `sequences` long sequences: if blocks take several tiles, all must be of one
// sequence.
bool TakesBatch(const WidePlan& plan, int64_t sequences);

// WideKvHeads: KV heads of a round, whose streams are made together. WideTiles: tiles of a group, whose scores for
// `round_heads` of these KV heads are in memory together. Requires: positions (of the batch) and stride (padded length
// of the longest tile) are at least 1.
int64_t WideKvHeads(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions,
                    int64_t stride);
int64_t WideTiles(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions,
                  int64_t kv_heads, int64_t round_heads, int64_t stride, int64_t tiles);
// Whether the other words of streams of V are made in the memory of the streams of K, for the groups that need them: if
// positions are dealt and one KV head takes more than a device's share.
bool SharesStreams(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions);
// Bytes of streams and value codes of `kv_heads` KV heads.
int64_t WideStreamBytes(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions,
                        int64_t kv_heads);
// Most bytes of scratch of each kind of tiles for passes within the limits. WideScratchBytes is 0 if wide tiles are not
// supported.
int64_t TileScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits);
int64_t WideScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits);

// If positions are dealt, groups of tiles are as even as possible. Streams, scores and sums of p v together take a
// device's share of what one GPU has for them or, for the longest sequences, as much as is needed for the streams of
// one KV head and kWideSharedTiles / stripes tiles (at least kWideLeastTiles). At 131072 positions and four heads, a
// tile took 283 us on an H100 in groups of ten tiles, 307 in groups of six, 309 of four, 361 of three, 447 of two: in
// small groups the softmax has too few rows for the SMs.
inline constexpr int kWideSharedTiles = 16;
inline constexpr int kWideLeastTiles = 4;
// Whether codes of probabilities replace, in the same memory, the scores that they come from: if positions are dealt.
inline bool ReplacesScores(const AttentionShape& shape) { return shape.stripes > 1; }
// Positions of a range, a multiple of kKeyBlock, with which `blocks` blocks of `length` positions, each cut into
// ranges, best fill the GPU. start: cost of a block's prologue and epilogue, in positions.
int64_t WideRange(const GpuTraits& gpu, int64_t blocks, int64_t length, int64_t start);

// Where the sums of p v of a group go.
enum class WideSums : uint8_t {
  kOutputs,  // a block has all positions of its rows: it writes their outputs
  kMemory,   // several blocks add to sums in memory
  kLists,    // as kMemory, and single large probabilities are listed (kWideListed)
};
// A group of wide tiles.
struct WideGroupPlan {
  int64_t score_range = 0;  // positions that a block of q k takes; value_range: of p v
  int64_t value_range = 0;
  WideSums sums = WideSums::kOutputs;
};
// stride: positions of a row; seen: positions that the tiles of a block see together.
WideGroupPlan PlanWideGroup(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t tiles,
                            int64_t kv_heads, int64_t stride, int64_t seen);
inline constexpr int64_t kWideScoreStart = 128;
inline constexpr int64_t kWideValueStart = 600;

// Sequences with at least this many rows in a pass go through tiles.
inline constexpr int kLongSequenceRows = 16;
inline constexpr int kQueryTile = 64;           // rows of a tile
inline constexpr int kKeyBlock = 128;           // packed sequences are padded to a multiple of this
inline constexpr int kTileScoreRows = 32;       // rows of a block of q k in tile_mma.cu
inline constexpr int kTileInt8ScoreWarps = 16;  // warps of a q k block of tile_int8.cu
inline constexpr int kTileInt8ValueWarps = 8;
inline constexpr int kWideSlots = 4;   // (tile, head) pairs of a block of wide tiles, a warpgroup each
inline constexpr int kWideKeys = 128;  // keys of a stage of q k
inline constexpr int kWideRingHeader = 256;
inline constexpr int kWideStaticBytes = 256;  // upper bound of static shared memory
inline constexpr int kMaxWideStages = 12;
// Gains of rows with lengths of their own.
inline constexpr int64_t kWideGainBytes = int64_t{kWideSlots} * kQueryTile * 4;
// Streams of kWideValues values, in units of 16 bytes a dimension: for each half of the values two units of the sign
// correction and eight of first words, then eight units for each other word of each half.
inline constexpr int kWideValues = 64;
inline constexpr int kWideValueUnits = 10;  // most units of one word of a half
inline constexpr int kWideFirstUnits = 2 * kWideValueUnits;
constexpr int WideOtherUnits(int words) { return (words - 1) * 16; }
// Most codes that a row of at least GpuTraits::list_from positions lists; p v by first words leaves listed codes out.
inline constexpr int kWideListed = 128;
inline constexpr int kMinWideRange = 512;

}  // namespace stoch
