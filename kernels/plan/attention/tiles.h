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
// None for streams or heads that they are not built for, or on a device without room for them.
std::optional<ScTilePlan> PlanScTiles(const GpuTraits& gpu, const AttentionShape& shape);

// A group of tiles, so that their scores have a bound that no length of a prompt raises: so many tiles of all heads, or,
// where one tile of them is too much, so many heads of one tile, a multiple of the query heads that share a KV head.
struct TileGroup {
  int64_t tiles = 1;
  int64_t heads = 1;
};
// Requires: stride, the padded length of the longest tile, >= 1.
TileGroup CutTiles(const GpuTraits& gpu, const AttentionShape& shape, int64_t stride, int64_t tiles);

// Tiles by wgmma (attention/hopper): a block takes kWideSlots (tile, head) pairs that share a KV head, and a range of its
// positions. K and V are streams in memory, of some KV heads at a time.
struct WidePlan {
  int heads = 1;            // query heads of a KV head that a block takes
  int tiles = 1;            // tiles that a block takes: heads * tiles <= kWideSlots
  int parts = 1;            // blocks for all query heads of a KV head
  int64_t key_bytes = 0;    // streams of K, per position and KV head; so are the next three
  int64_t first_bytes = 0;  // first words of streams of V
  int64_t other_bytes = 0;  // their other words
  int64_t code_bytes = 0;   // codes of V
  constexpr int64_t position_bytes() const { return key_bytes + first_bytes + other_bytes + code_bytes; }
  int64_t score_stage_bytes = 0;  // of the pipeline that q k reads: 16 dimensions of kWideKeys keys
  int64_t value_stage_bytes = 0;  // of the pipeline that p v reads: kWideValueUnits
  int score_stages = 0;
  int value_stages = 0;
  int64_t score_shared_bytes = 0;
  int64_t value_shared_bytes = 0;
};
// None without wgmma, or for streams or heads that they are not built for. Lengths kByTile: of LongestShape.
std::optional<WidePlan> PlanWideTiles(const GpuTraits& gpu, const AttentionShape& shape);
// Whether `plan` takes a batch of so many long sequences: the tiles of a block are those of one sequence.
bool TakesBatch(const WidePlan& plan, int64_t sequences);

// KV heads whose streams are made at a time, and tiles whose scores of `round_heads` of these are. Requires: positions,
// those of the batch, and stride, the padded length of the (longest) tile, >= 1.
int64_t WideKvHeads(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions,
                    int64_t stride);
int64_t WideTiles(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions,
                  int64_t kv_heads, int64_t round_heads, int64_t stride, int64_t tiles);
// Whether the other words of streams of V are made in the place of streams of K, for the groups that need them: where
// positions are dealt and one KV head takes more than a device's share.
bool SharesStreams(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions);
// Bytes of streams and codes of `kv_heads` KV heads.
int64_t WideStreamBytes(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions,
                        int64_t kv_heads);
// Bytes of scratch of either kind of tiles at most, for passes within the limits; 0 where wide tiles are not supported.
int64_t TileScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits);
int64_t WideScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits);

// Where positions are dealt, groups of tiles are as even as they can be. Streams, scores and sums of p v together take
// a device's share of what one GPU has for them, or, for the longest sequences, what the streams of one KV head and
// its share of kWideSharedTiles tiles take, but of no fewer than kWideLeastTiles. At 131072 positions and four heads a
// tile took 283 us of an H100 in groups of ten, 307 of six, 309 of four, 361 of three, 447 of two: the softmax has too
// few rows for the SMs.
inline constexpr int kWideSharedTiles = 16;
inline constexpr int kWideLeastTiles = 4;
// Codes of probabilities then replace the scores that they come from.
inline bool ReplacesScores(const AttentionShape& shape) { return shape.stripes > 1; }
// Positions that a block takes, a multiple of kKeyBlock, so that `blocks` tile blocks of `length` positions fill the GPU.
// start: prologue and epilogue of a block, in positions.
int64_t WideRange(const GpuTraits& gpu, int64_t blocks, int64_t length, int64_t start);

// Where the sums of p v of a group go.
enum class WideSums : uint8_t {
  kOutputs,  // a block has all positions of its rows: it writes their outputs
  kMemory,   // several blocks add to them
  kLists,    // the same, and single large probabilities are listed next to them (kWideListed)
};
// A group of wide tiles.
struct WideGroupPlan {
  int64_t score_range = 0;  // positions that a block of q k takes, and of p v
  int64_t value_range = 0;
  WideSums sums = WideSums::kOutputs;
};
// stride: positions of a row; seen: those that the tiles of a block see together.
WideGroupPlan PlanWideGroup(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t tiles,
                            int64_t kv_heads, int64_t stride, int64_t seen);
inline constexpr int64_t kWideScoreStart = 128;
inline constexpr int64_t kWideValueStart = 600;

// Sequences with at least this many rows in a pass go through tiles.
inline constexpr int kLongSequenceRows = 16;
inline constexpr int kQueryTile = 64;           // rows of a tile
inline constexpr int kKeyBlock = 128;           // positions that packed sequences are padded to
inline constexpr int kTileScoreRows = 32;       // of a block of q k in tiles
inline constexpr int kTileInt8ScoreWarps = 16;  // of a block of tile_int8.cu
inline constexpr int kTileInt8ValueWarps = 8;
inline constexpr int kWideSlots = 4;   // warpgroups of a block of wide tiles that multiply
inline constexpr int kWideKeys = 128;  // columns of q k
inline constexpr int kWideRingHeader = 256;
inline constexpr int kWideStaticBytes = 256;  // upper bound of static shared memory
inline constexpr int kMaxWideStages = 12;
inline constexpr int64_t kWideGainBytes = int64_t{kWideSlots} * kQueryTile * 4;  // of rows with lengths of their own
// Streams of kWideValues values, in units of 16 bytes a dimension: for each half of them two of the sign correction and
// eight of first words, then eight for each other word and half.
inline constexpr int kWideValues = 64;
inline constexpr int kWideValueUnits = 10;  // of a word of a half, at most
inline constexpr int kWideFirstUnits = 2 * kWideValueUnits;
constexpr int WideOtherUnits(int words) { return (words - 1) * 16; }
// Codes that a row of GpuTraits::list_from positions or more lists, at most: p v of first words leaves them out.
inline constexpr int kWideListed = 128;
inline constexpr int kMinWideRange = 512;

}  // namespace stoch
