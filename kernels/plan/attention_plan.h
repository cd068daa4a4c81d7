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

enum class AttentionKernel : uint8_t {
  kScRows,     // attention_row.cu: a cluster of blocks per row and head, count rows in shared memory
  kScTiles,    // attention_tile*.cu: tiles of 64 rows on binary tensor cores
  kExactRows,  // attention_exact.cu: fp32, a block per row and head
  kHalfRows,   // attention_half_rows.cu: the fp16 baseline
  kHalfTiles,  // attention_half_tiles.cu
};
std::string_view AttentionKernelName(AttentionKernel kernel);

// The attention of one device's heads.
struct AttentionShape {
  AttentionMode mode = AttentionMode::kExact;
  Precision precision = Precision::kFp32;  // kFp16: the half baseline, with mode kExact
  int num_heads = 1;
  int num_kv_heads = 1;
  int head_dim = 0;
  ScTraits qk, av;  // read where mode is not kExact
};
// What: of a cache and the query heads that read it.
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
// recording: into a graph, which must do for every pass within the limits.
AttentionPlan PlanAttention(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, bool recording);

// One launch of the SC row kernel.
struct ScRowPlan {
  int cluster = 1;           // blocks of a row and head
  int blocks_per_sm = 1;     // that the kernel is compiled for: 1, 2 or 4
  int shared_scores = 0;     // positions whose scores stay in shared memory; longer contexts spill
  int64_t shared_bytes = 0;  // dynamic
  int64_t static_bytes = 0;  // at most that much static
};
ScRowPlan PlanScRows(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length);
// The same for the fp16 baseline: blocks of a row and group of heads.
int HalfRowCluster(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length);

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
// What: bytes of the workspace that LaunchAttention takes at most for any pass within the limits.
int64_t AttentionScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits);

// How a group of tiles is cut: so many tiles of all heads, or, where one tile of them is too much, so many heads of one
// tile, a multiple of the query heads that share a KV head.
struct TileGroup {
  int64_t tiles = 1;
  int64_t heads = 1;
};
// Requires: stride, the padded length of the longest tile, >= 1.
TileGroup CutTiles(const GpuTraits& gpu, const AttentionShape& shape, int64_t stride, int64_t tiles);

// Scores that row kernels keep in memory where a context is too long for shared memory.
struct SpillPlan {
  int64_t stride = 0;        // positions of a row and head; 0: none spills
  int64_t rows_at_once = 0;  // of a launch
};
SpillPlan PlanSpill(const AttentionShape& shape, int64_t rows, int64_t max_context);

inline constexpr int kScRowSoloTokens = 256;    // up to here one block beats a cluster
inline constexpr int kHalfRowSoloTokens = 128;  // the same of the fp16 baseline
inline constexpr int kMaxAttentionCluster = 8;
inline constexpr int kMaxSharedScores = 8192;
inline constexpr int kQueryTile = 64;  // rows of a tile
inline constexpr int kKeyBlock = 64;   // positions that packed sequences are padded to

// ---- Sizes of the kernels, which check them where they are compiled.
inline constexpr int64_t kScRowFixedBytes = 10496 + 256 * 128;  // dynamic, besides gathered outputs and scores
inline constexpr int64_t kScRowStaticBytes = 8192;
inline constexpr int kSoftmaxWarps = 4;  // of a block of the tiles' softmax, a row each

}  // namespace stoch
