// SPDX-License-Identifier: Apache-2.0
// The row kernel (row.cu): its arguments, how it cuts a context over blocks, and its layout of shared memory.
#pragma once

#include <bit>
#include <cstddef>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/row_stage.cuh"
#include "kernels/cuda/attention/row_words.cuh"
#include "kernels/cuda/sc/format/lengths.h"

namespace stoch::cuda::attention_row {

inline constexpr int kThreads = kRowLanes;
inline constexpr int kWarps = kBlockWarps;
// Positions (tokens) in a tile, four for each lane of a warp. The blocks of a cluster take tiles round robin.
inline constexpr int kTileTokens = 32 * kLaneTokens;
static_assert(kTileTokens % kTurnTokens == 0);
// Tiles in a round, whose scores a block computes between two barriers: one position per thread.
inline constexpr int kRoundTiles = kThreads / kTileTokens;
// Tokens whose count-table rows are staged in shared memory at a time in p v.
inline constexpr int kStageTokens = 256;
// Count-table rows of the stage; a query needs one per dimension (head_dim <= 256), p v one per staged token.
inline constexpr int kStageRows = 256;
static_assert(kStageRows >= kStageTokens);
// Groups of kGroupTokens (4) tokens that each warp takes of a stage.
inline constexpr int kChunkGroups = kStageTokens / kTurnTokens;
// A context of at most this many tokens is computed by one block instead of a cluster.
inline constexpr int kSoloTokens = kScRowSoloTokens;
static_assert(kSoloTokens == kThreads);
// Entries of the page table that a block keeps in shared memory.
inline constexpr int kMaxSharedPages = 128;

// Variants of the row kernel. In kPerToken, a query and the probabilities each have one scale per row and head.
// kFresh: kPerToken, and the kernel also rotates, quantizes and appends the rows of the pass.
// kPosted: kFresh for a pass of one row, whose words are polled while the previous kernel posts them.
// kMixed: kPerToken with a stream length for every (row, head). kMixedFresh: kMixed and kFresh together.
// kPerRow: the mode. kHeadMax, kHeadOutput: the two launches of mode kPerHead, which find the largest probability of
// each head, then quantize with its scale.
enum class Phase : uint8_t { kPerToken, kFresh, kPosted, kMixed, kMixedFresh, kPerRow, kHeadMax, kHeadOutput };
constexpr bool IsFresh(Phase phase) {
  return phase == Phase::kFresh || phase == Phase::kPosted || phase == Phase::kMixedFresh;
}
constexpr bool IsMixed(Phase phase) { return phase == Phase::kMixed || phase == Phase::kMixedFresh; }
constexpr bool IsPerToken(Phase phase) { return phase == Phase::kPerToken || IsFresh(phase) || IsMixed(phase); }

// Arguments of the row kernel for uniform stream lengths.
struct RowArgs {
  AttentionArgs attention;
  ScTables qk, av;
  QueryCodes q;
  HeadNorm norm;
  WindowScales window;
  // kPosted: the words to poll, and where the output is posted.
  PostedHeads posted;
  // [rows of the launch]; null: rows row_offset, row_offset + 1, ...
  const int32_t* row_list = nullptr;
  int32_t row_offset = 0;
  // [rows of the launch][num_heads][spill_stride]: scores of contexts longer than shared_scores.
  float* spill = nullptr;
  int64_t spill_stride = 0;
  // Positions whose scores fit in shared memory.
  int32_t shared_scores = 0;
  // Number of blocks in a cluster, and its log2.
  int32_t cluster = 1;
  int32_t cluster_shift = 0;
  PostPeers peers;  // peer GPUs that also receive posted.out

  RowArgs() = default;
  RowArgs(const AttentionArgs& args, const ScOperands& operands, const ScoreSpill& scores)
      : attention(args),
        qk(operands.qk),
        av(operands.av),
        q(operands.q),
        norm(operands.norm),
        window(operands.window),
        posted(operands.posted),
        spill(scores.scores),
        spill_stride(scores.stride),
        peers(operands.peers) {}
  // Sets the arguments that differ between launches: this launch takes rows[first], rows[first + 1], ...
  void Cut(const ScRowPlan& plan, const RowSet& rows, int first) {
    row_list = rows.list != nullptr ? rows.list + first : nullptr;
    row_offset = first;
    shared_scores = plan.shared_scores;
    cluster = plan.cluster;
    cluster_shift = std::countr_zero(static_cast<unsigned>(plan.cluster));
  }
};

// Arguments of the row kernel for mixed stream lengths. Of qk and av, only members that are equal for all lengths are
// read.
struct MixedRowArgs : RowArgs {
  MixedRowArgs() = default;
  explicit MixedRowArgs(const RowArgs& args) : RowArgs(args) {}
  // [rows][num_heads]: count table of each query at its length; unused in kMixedFresh.
  const ByteTable* q_tables = nullptr;
  LengthView qk_lengths;  // tables of q k, and the rule that picks the length of the query; read in kMixedFresh
  LengthView av_lengths;  // tables of p v, and the rule that picks the length of the probabilities
  // [rows][num_heads]: slot (index of the length) of the probabilities, written by the kernel; null: not needed.
  uint8_t* p_slots = nullptr;
};

// Shared memory of a block; the arrays lie in this order.
struct SharedLayout {
  // [kWarps][kPaddedLanes]: counts of q k by warp for the tokens of a round; then [kWarps][head_dim]: sums of p v by
  // warp.
  int32_t* parts;
  int32_t* largest;  // [2][kWarps]: the largest score, then the largest weight of each warp (one-block contexts)
  float* reduce;     // [kPaddedLanes]: scratch of block reductions
  uint8_t* stage;    // [kStageRows][kRowBytes]: staged count-table rows
  int32_t* gather;   // [blocks of the cluster][head_dim]: sums of p v of the other blocks, used in block 0
  float* scores;     // [shared_scores]: scores, then exponentials, then weights
};

inline constexpr int kPartsCount = kWarps * kPaddedLanes;
static_assert(kPaddedLanes >= 256);  // `parts` has room for kWarps * head_dim sums of p v

// Bytes of parts, largest and reduce, rounded up to 256: LookUpWord needs rows aligned to 256 bytes.
inline constexpr int kFixedBytes = (4 * (kPartsCount + 2 * kWarps + kPaddedLanes) + 255) / 256 * 256;

// Places the arrays in `memory`. Arrays of fixed size come first, so that their offsets are constants.
__device__ __forceinline__ SharedLayout MakeLayout(void* memory, int head_dim, int cluster) {
  SharedLayout s;
  s.parts = static_cast<int32_t*>(memory);
  s.largest = s.parts + kPartsCount;
  s.reduce = reinterpret_cast<float*>(s.largest + 2 * kWarps);
  s.stage = static_cast<uint8_t*>(memory) + kFixedBytes;
  s.gather = reinterpret_cast<int32_t*>(s.stage + kStageRows * kRowBytes);
  s.scores = reinterpret_cast<float*>(s.gather + cluster * head_dim);
  return s;
}

}  // namespace stoch::cuda::attention_row
