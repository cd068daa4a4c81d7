// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU: who attends, how the work is cut, with how much shared memory and scratch.
//
// The launch, the plan of memory, `stoch inspect` and a table test over GPUs that nobody has to own ask the same
// functions. Bits: all SC and exact kernels give the same, so the choice is invisible.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/backend.h"
#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/sc_traits.h"

namespace stoch {

enum class AttentionKernel : uint8_t {  // in files of kernels/cuda
  kScRows,      // attention/row.cu: a cluster of blocks per row and head, count rows in shared memory
  kScSplit,     // attention/split/: the contexts of all rows cut over the GPU, on binary tensor cores
  kScTiles,     // attention/tile*.cu: tiles of 64 rows on binary tensor cores
  kScWide,      // attention/wide/: four tiles at a time on binary wgmma
  kExactRows,   // attention/exact.cu: fp32, a block per row and head
  kExactSplit,  // attention/split/exact.cu: fp32, the contexts of all rows cut over the GPU
  kHalfRows,    // attention/half/rows.cu: the fp16 baseline
  kHalfTiles,   // attention/half/tiles.cu
};
std::string_view AttentionKernelName(AttentionKernel kernel);

// The attention of one device's heads.
struct AttentionShape {
  AttentionMode mode = AttentionMode::kExact;
  Precision precision = Precision::kFp32;  // kFp16: the half baseline, with mode kExact
  int num_heads = 1;
  int num_kv_heads = 1;
  int head_dim = 0;
  ScTraits qk, av;       // read where mode is not kExact
  bool swapped = false;  // HasSwappedStreams
  bool alone = true;     // no other kernel whose blocks wait for each other runs on the GPU meanwhile
  int stripes = 1;       // devices that positions are dealt over (kernels/stripes.h)
  int64_t longest = 0;   // where they are: positions of the longest sequence that scratch is planned for
};
// Whether a cache of this kind keeps the tables of SwapStreams, which wide tiles read: where the operators allow it and
// are those of every layer.
bool HasSwappedStreams(const KvCacheSpec& spec);
// Of a cache and the query heads that read it.
AttentionShape MakeAttentionShape(const KvCacheSpec& spec, int num_heads);

// Which rows of a pass go to which kernels, and which cache entries they write.
struct AttentionPlan {
  AttentionKernel long_rows = AttentionKernel::kExactRows;   // of sequences with at least kLongSequenceRows rows
  AttentionKernel short_rows = AttentionKernel::kExactRows;  // of the others
  bool is_fresh = false;  // all rows go to the row kernel, which appends them to the cache itself
};
// Sequences with at least this many rows in a pass go through tiles; passes of so few rows append for themselves.
inline constexpr int kLongSequenceRows = 16;
inline constexpr int kFreshRows = 8;
// recording: into a graph, which must do for every pass within the limits. max_length: of the pass's contexts; a graph
// recorded for other ones gives the same bits, later.
AttentionPlan PlanAttention(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length,
                            bool recording);

// One launch of the SC row kernel.
struct ScRowPlan {
  int cluster = 1;           // blocks of a row and head
  int blocks_per_sm = 1;     // that the kernel is compiled for: 1, 2 or 4
  int shared_scores = 0;     // positions whose scores stay in shared memory; longer contexts spill
  int64_t shared_bytes = 0;  // dynamic
  int64_t static_bytes = 0;  // at most that much static
};
ScRowPlan PlanScRows(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length);
// The same for the fp16 baseline: blocks of a row and group of heads. Gangs, clusters of one row, are merged by a kernel.
struct HalfRowPlan {
  int cluster = 1;
  int gangs = 1;
};
HalfRowPlan PlanHalfRows(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length);
// Floats of the gangs' records: a bound for every number of rows.
int64_t HalfRowRecordFloats(const GpuTraits& gpu, const AttentionShape& shape);

// The kernels that cut the contexts of single rows over the whole GPU.
struct SplitPlan {
  bool supported = false;  // streams and heads that they are built for, on a device with room for them
  int block_heads = 1;     // query heads of a KV head that a block takes
  int head_blocks = 1;     // blocks that take them all
  int64_t score_shared_bytes = 0;
  int64_t value_shared_bytes = 0;
  int score_blocks = 1;  // of a launch; they find their work themselves
  int value_blocks = 1;
  bool is_one_block = false;  // a row's softmax is one block's work, without a kernel for the weights of long rows
  bool is_fused = false;      // all of it is one kernel of clusters
  int fused_units = 0;        // whose scores stay in shared memory
  int64_t fused_shared_bytes = 0;
  // All of it is one kernel of blocks that are all on the GPU at once; not for pages of less than kSplitLookupTile positions.
  bool is_resident = false;
  int resident_blocks = 0;     // that the rows of a launch share, at most kSplitResidentRanks a row and its heads
  int resident_positions = 0;  // of a block, whose scores stay in shared memory: a multiple of kSplitResidentStep
  int resident_masks = 0;      // whose streams of weights do
  int64_t resident_shared_bytes = 0;
  bool is_lookup = false;    // the same with q k by look-ups
  int lookup_positions = 0;  // of a block, whose counts and exponentials stay in shared memory
  int lookup_masks = 0;
  int64_t lookup_shared_bytes = 0;
  bool has_words = false;  // and p v by first words of streams
};
SplitPlan PlanSplit(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length);

// How the kernels for tiles use shared memory.
struct ScTilePlan {
  bool supported = false;  // streams and heads that they are built for, on a device with room for them
  int score_rows = 0;      // of a tile, that a block of the score kernel takes: 64, or 32 where more do not fit
  int64_t score_shared_bytes = 0;
  bool table_in_shared = false;  // the streams of the probabilities; otherwise read through L1
  int64_t value_shared_bytes = 0;
  int max_kept_floats = 0;  // numbers of a row that the softmax keeps; longer rows are computed again
};
ScTilePlan PlanScTiles(const GpuTraits& gpu, const AttentionShape& shape);

// The scratch of one pass. Scores of tiles are made for a group of (tile, head) pairs at a time, so that it has a bound
// that no length of a prompt raises.
struct AttentionLimits {
  int64_t max_rows = 0;
  int64_t max_sequences = 0;
  int64_t max_context = 0;
};
// Bytes of the workspace that LaunchAttention takes at most for any pass within the limits.
int64_t AttentionScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits);

// How a group of tiles is cut: so many tiles of all heads, or, where one tile of them is too much, so many heads of one
// tile, a multiple of the query heads that share a KV head.
struct TileGroup {
  int64_t tiles = 1;
  int64_t heads = 1;
};
// Requires: stride, the padded length of the longest tile, >= 1.
TileGroup CutTiles(const GpuTraits& gpu, const AttentionShape& shape, int64_t stride, int64_t tiles);

// The same tiles by wgmma (attention/wide): a block takes kWideSlots (tile, head) pairs that share a KV head, and a
// range of its positions. K and V are streams in memory, of some KV heads at a time.
struct WidePlan {
  bool supported = false;
  int heads = 1;            // of a KV head's query heads, that a block takes
  int tiles = 1;            // that a block takes: heads * tiles <= kWideSlots
  int parts = 1;            // blocks for all query heads of a KV head
  int64_t key_bytes = 0;    // of streams of K, a position and KV head
  int64_t first_bytes = 0;  // of first words of streams of V
  int64_t other_bytes = 0;  // of their other words
  int64_t code_bytes = 0;   // of codes of V
  constexpr int64_t position_bytes() const { return key_bytes + first_bytes + other_bytes + code_bytes; }
  int64_t score_stage_bytes = 0;  // of the ring that q k reads: 16 dimensions of kWideKeys keys
  int64_t value_stage_bytes = 0;  // of the ring that p v reads: kWideValueUnits
  int score_stages = 0;
  int value_stages = 0;
  int64_t score_shared_bytes = 0;
  int64_t value_shared_bytes = 0;
};
WidePlan PlanWideTiles(const GpuTraits& gpu, const AttentionShape& shape);
// Whether `plan` takes a batch of so many long sequences: a block's tiles are one sequence's.
bool TakesBatch(const WidePlan& plan, int64_t sequences);

// How a batch is cut: streams of so many KV heads are made at a time, and of `round_heads` of these the scores of so many
// of `tiles`. Requires: positions, those of the batch, and stride, the padded length of the (longest) tile, >= 1.
int64_t WideKvHeads(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions,
                    int64_t stride);
int64_t WideTiles(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions,
                  int64_t kv_heads, int64_t round_heads, int64_t stride, int64_t tiles);
// Whether words of streams of V beyond the first ones are made in the place of streams of K, for the groups that need them:
// where positions are dealt and a KV head alone takes more than a device's share.
bool SharesStreams(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions);
// Bytes of streams and codes of `kv_heads` KV heads.
int64_t WideStreamBytes(const GpuTraits& gpu, const AttentionShape& shape, const WidePlan& plan, int64_t positions,
                        int64_t kv_heads);
// Where positions are dealt, groups of tiles are as even as they can be. Streams, scores and sums of p v together take
// a device's share of what one GPU has for them, or, of the longest sequences, what the streams of one KV head and
// its share of kWideSharedTiles tiles take, but of no fewer than kWideLeastTiles. Of 131072 positions and four heads a tile took
// 283 us of an H100 in groups of ten, 307 of six, 309 of four, 361 of three, 447 of two: the softmax has too few rows for the SMs.
inline constexpr int kWideSharedTiles = 16;
inline constexpr int kWideLeastTiles = 4;
// Codes of probabilities then replace the scores that they come from.
inline bool ReplacesScores(const AttentionShape& shape) { return shape.stripes > 1; }
// Positions that a block takes, a multiple of kKeyBlock, so that `blocks` tile blocks of `length` positions fill the GPU.
// start: what a block takes to begin and to end, in positions.
int64_t WideRange(const GpuTraits& gpu, int64_t blocks, int64_t length, int64_t start);
inline constexpr int64_t kWideScoreStart = 128;
inline constexpr int64_t kWideValueStart = 600;

// Scores that row kernels keep in memory where a context is too long for shared memory, or cut over many blocks.
struct SpillPlan {
  int64_t stride = 0;        // positions of a row and head; 0: none spills
  int64_t rows_at_once = 0;  // of a launch
  int64_t parts = 0;         // of a row of the split kernels, at most; 0: they do not run
};
SpillPlan PlanSpill(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits);
// Counts of p v of the split kernels, of so many rows at a time: of heads, or of blocks of the resident kernel.
int64_t SplitSums(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows);

inline constexpr int kScRowSoloTokens = 256;    // up to here one block beats a cluster
inline constexpr int kHalfRowSoloTokens = 128;  // the same of the fp16 baseline
inline constexpr int kMaxAttentionCluster = 8;
inline constexpr int kMaxSharedScores = 8192;
inline constexpr int kQueryTile = 64;  // rows of a tile
inline constexpr int kKeyBlock = 128;  // positions that packed sequences are padded to
inline constexpr int kWideSlots = 4;   // warpgroups of a block of wide tiles that multiply
inline constexpr int kWideKeys = 128;  // columns of q k
inline constexpr int kWideRingHeader = 256;
inline constexpr int kWideStaticBytes = 256;  // at most that much static
inline constexpr int kMaxWideStages = 12;
// Streams of kWideValues values, in units of 16 bytes a dimension: of each half of them two of the sign correction and eight of
// first words, then of each word and half eight.
inline constexpr int kWideValues = 64;
inline constexpr int kWideValueUnits = 10;  // at most, of a word of a half
inline constexpr int kWideFirstUnits = 2 * kWideValueUnits;
constexpr int WideOtherUnits(int words) { return (words - 1) * 16; }
// Single codes that a row of GpuTraits::list_from positions or more lists for itself, of which p v of first words knows nothing,
// at most.
inline constexpr int kWideListed = 128;
inline constexpr int kMinWideRange = 512;

inline constexpr int kSplitScHeads = 8;         // query heads of a block: columns of a tile
inline constexpr int kSplitExactHeads = 4;      // the same in fp32
inline constexpr int kSplitRanks = 8;           // blocks of a cluster
inline constexpr int kSplitResidentRanks = 16;  // blocks of a row and its heads in the resident kernel, at most
inline constexpr int kSplitResidentRows = 32;   // that find their blocks themselves
inline constexpr int kSplitResidentThreads = 512;
inline constexpr int kSplitResidentStep = 32;           // positions
inline constexpr int kSplitResidentPad = 16;            // floats between heads, which are then in different banks
inline constexpr int kSplitUnit = 256;                  // positions: contexts are cut at multiples of it
inline constexpr int64_t kSplitOneBlockSoftmax = 4096;  // contexts whose softmax one block does
inline constexpr int kSplitSoloUnits = 8;               // of a row whose softmax one block does
inline constexpr int kSplitWeightUnits = 8;             // of a part of a longer row's weights
inline constexpr int kSplitSoftmaxBlocks = 4;           // an SM

// ---- Sizes of the kernels, which check them where they are compiled.
inline constexpr int64_t kSplitTableBytes = 256 * 8 * 16;  // a thermometer for every code, a copy for every bank group
constexpr int64_t SplitScoreBytes(int head_dim, int tiles) {  // streams of queries and their ones
  return int64_t{tiles} * (head_dim / 16 * (4 * 32 * 16 + 32 * 4) + 4 * 4 * 4);
}
// Outputs, maxima, totals and scales of the resident kernel.
constexpr int64_t SplitResidentBytes(int head_dim, int tiles) { return int64_t{tiles} * 4 * (head_dim + 1) * 4 + 224; }
// Of the resident kernel by look-ups: counts of 4 heads, 128 dimensions and 256 codes, and behind them scales of values;
// maxima and dimensions that need care.
inline constexpr int kSplitLookupTile = 16;         // positions of a warp at a time
inline constexpr int kSplitLookupPositions = 8192;  // of a block in shared memory, at most
inline constexpr int kSplitLookupScaleBytes = kSplitLookupPositions * 4 + 1024;
inline constexpr int64_t kSplitLookupBytes = 128 * 256 * 4 + kSplitLookupScaleBytes + 1024;
// Counts of its positions with the heads, or thermometers, which follow in their place.
constexpr int64_t SplitLookupCountBytes(int64_t positions) {
  const int64_t counts = (positions + kSplitResidentPad) * 8;
  return counts > kSplitTableBytes ? counts : kSplitTableBytes;
}
// First words of the streams of values under 16 masks, which follow in the place of the counts: of 256 codes, a copy for every
// bank of four.
inline constexpr int kSplitWordsMasks = 16;
inline constexpr int64_t kSplitWordsBytes = kSplitWordsMasks * 256 * 4 * 4;
// Streams of 128 bits.
constexpr int64_t SplitStreamBytes(int masks, int levels) { return int64_t{masks} * levels * 16; }
// Streams of queries, lane sums, outputs and maxima of all blocks of a cluster.
constexpr int64_t SplitFusedBytes(int head_dim, int tiles, int ranks) {
  return int64_t{tiles} * (head_dim / 16 * (4 * 32 * 16 + 32 * 4)) + 8 * 4 * head_dim + 8 * 256 * 4 +
         (2 * ranks + 8) * 8 * 4 + 32;
}
constexpr int64_t SplitValueBytes(int head_dim) { return 8 * 4 * (head_dim + 1) + 16; }
inline constexpr int64_t kScRowFixedBytes = 10496 + 256 * 128;  // dynamic, besides gathered outputs and scores
inline constexpr int64_t kScRowStaticBytes = 8192;
inline constexpr int kSoftmaxWarps = 4;  // of a block of the tiles' softmax, a row each

}  // namespace stoch
