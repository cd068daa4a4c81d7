// SPDX-License-Identifier: Apache-2.0
// Arguments of the row kernel (row.cu), how it cuts a context, and its layout of shared memory.
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
inline constexpr int kTileTokens = 32 * kLaneTokens;
static_assert(kTileTokens % kTurnTokens == 0);
inline constexpr int kRoundTiles = kThreads / kTileTokens;  // tiles between two barriers of the score loop
inline constexpr int kStageTokens = 256;                    // probability rows staged at once
inline constexpr int kStageRows = 256;                      // and rows of a query, whose head_dim is at most that
static_assert(kStageRows >= kStageTokens);
inline constexpr int kChunkGroups = kStageTokens / kTurnTokens;  // of one warp: groups of four tokens in a stage
inline constexpr int kSoloTokens = kScRowSoloTokens;             // up to here one block beats a cluster
static_assert(kSoloTokens == kThreads);
inline constexpr int kMaxSharedPages = 128;

// kFresh: kPerToken that also quantizes and appends the rows of the pass; kPosted: the same of one row that the kernel in
// front posts. kMixed: kPerToken whose rows have stream lengths of their own, kMixedFresh both. kHeadMax only finds the
// largest probability; kHeadOutput then quantizes with it.
enum class Phase : uint8_t { kPerToken, kFresh, kPosted, kMixed, kMixedFresh, kPerRow, kHeadMax, kHeadOutput };
constexpr bool IsFresh(Phase phase) {
  return phase == Phase::kFresh || phase == Phase::kPosted || phase == Phase::kMixedFresh;
}
constexpr bool IsMixed(Phase phase) { return phase == Phase::kMixed || phase == Phase::kMixedFresh; }
constexpr bool IsPerToken(Phase phase) { return phase == Phase::kPerToken || IsFresh(phase) || IsMixed(phase); }

struct RowArgs {
  AttentionArgs attention;
  ScTables qk, av;
  QueryCodes q;
  HeadNorm norm;
  WindowScales window;
  PostedHeads posted;                 // kPosted
  const int32_t* row_list = nullptr;  // null: rows row_offset, row_offset + 1, ...
  int32_t row_offset = 0;
  float* spill = nullptr;  // [grid rows][num_heads][spill_stride]: scores of contexts beyond shared_scores
  int64_t spill_stride = 0;
  int32_t shared_scores = 0;
  int32_t cluster = 1;
  int32_t cluster_shift = 0;  // cluster = 1 << cluster_shift
  PostPeers peers;            // of posted.out

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
  // For the launch of rows[first ..).
  void Cut(const ScRowPlan& plan, const RowSet& rows, int first) {
    row_list = rows.list != nullptr ? rows.list + first : nullptr;
    row_offset = first;
    shared_scores = plan.shared_scores;
    cluster = plan.cluster;
    cluster_shift = std::countr_zero(static_cast<unsigned>(plan.cluster));
  }
};

// qk and av then say what all lengths have in common.
struct MixedRowArgs : RowArgs {
  MixedRowArgs() = default;
  explicit MixedRowArgs(const RowArgs& args) : RowArgs(args) {}
  const ByteTable* q_tables = nullptr;  // [rows][num_heads]; kMixedFresh: not read
  LengthView qk_lengths;                // kMixedFresh
  LengthView av_lengths;
  uint8_t* p_slots = nullptr;  // [rows][num_heads], written; null: not needed
};

// Shared memory of one block, in this order.
struct SharedLayout {
  int32_t* parts;    // [kWarps][kPaddedLanes] partial counts; then [kWarps][head_dim]
  int32_t* largest;  // [2][kWarps]
  float* reduce;     // [kPaddedLanes]
  uint8_t* stage;    // [kStageRows][kRowBytes] count rows
  int32_t* gather;   // [cluster size][head_dim]
  float* scores;     // [shared_scores]
};

inline constexpr int kPartsCount = kWarps * kPaddedLanes;
static_assert(kPaddedLanes >= 256);  // the largest head_dim

// A multiple of 256, the alignment of rows in LookUpWord.
inline constexpr int kFixedBytes = (4 * (kPartsCount + 2 * kWarps + kPaddedLanes) + 255) / 256 * 256;

__device__ __forceinline__ SharedLayout MakeLayout(void* memory, int head_dim, int cluster) {
  SharedLayout s;
  // Arrays of fixed size first: their offsets are constants.
  s.parts = static_cast<int32_t*>(memory);
  s.largest = s.parts + kPartsCount;
  s.reduce = reinterpret_cast<float*>(s.largest + 2 * kWarps);
  s.stage = static_cast<uint8_t*>(memory) + kFixedBytes;
  s.gather = reinterpret_cast<int32_t*>(s.stage + kStageRows * kRowBytes);
  s.scores = reinterpret_cast<float*>(s.gather + cluster * head_dim);
  return s;
}

}  // namespace stoch::cuda::attention_row
