// SPDX-License-Identifier: Apache-2.0
// The kernels behind LaunchAttention and what they share. Private to this folder and to ring/.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/attention/dilated.cuh"
#include "kernels/cuda/attention/kv_cache.h"
#include "kernels/cuda/base/row_post.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/pass.h"
#include "kernels/cuda/runtime/stripe_view.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/plan/attention_plan.h"

namespace stoch::cuda {

// One AttentionCall, checked; passed by value.
struct AttentionArgs {
  PassView pass;
  KvView kv;
  float* q = nullptr;  // [rows][num_heads * head_dim], rotated in place where a kernel needs the floats again
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  const float* rope = nullptr;  // [positions][head_dim], of rope_stripe
  int64_t rope_stride = 0;
  StripeView rope_stripe;
  float* out = nullptr;
  int64_t out_stride = 0;
  int32_t rows = 0;
  int32_t num_heads = 0;
  int32_t group = 1;   // query heads per KV head
  int32_t window = 0;  // AttentionCall::window
  float inv_sqrt = 0;  // float(1 / sqrt(head_dim))
  SiteReporter reporter;
};

// Rows that a row kernel works on: list[0..count), or rows 0..count-1 where list is null; no context is longer than
// max_length.
struct RowSet {
  const int32_t* list = nullptr;
  int32_t count = 0;
  int32_t max_length = 0;
};

// Where row kernels keep the scores of a context that is too long for shared memory: [rows_at_once][num_heads][stride].
// Planned for the limits of the pass, so that a recorded graph takes the same scratch as the eager run before it.
struct ScoreSpill {
  float* scores = nullptr;
  int64_t stride = 0;
  int32_t rows_at_once = 32768;  // of one launch; gridDim is limited to 65535
};

// Scratch of the rows of one launch of the split kernels, `rows` of them; a part is a whole number of units of kSplitUnit positions.
struct SplitScratch {
  float* scores = nullptr;      // [rows][num_heads][stride]: scores, then exponentials, then weights
  float* score_max = nullptr;   // [rows][num_heads][parts]: of every part of the scores
  float* weight_max = nullptr;  // [rows][num_heads][parts]: of what is quantized
  float* lane_sums = nullptr;   // [rows][num_heads][kRowLanes]
  int32_t* sums = nullptr;      // [rows][num_heads][head_dim]: counts of p v
  float* dot_lanes = nullptr;   // exact, in the place of sums: [rows][num_heads][kDotLanes][head_dim]
  int32_t* done = nullptr;      // [rows][kv heads * head_blocks]: parts that added theirs
  int64_t stride = 0;
  int32_t parts = 0;
  int32_t rows = 0;
};

// Tiles that a tile kernel works on: device memory, and what the host knows of them.
struct TileSet {
  const QueryTile* device = nullptr;
  std::span<const QueryTile> host;  // by batch, longest context first
  std::span<const TileBatch> batches;
};

// Weights of an RMSNorm of the heads of q and k in front of RoPE (NormHeadsCall); null: none.
struct HeadNorm {
  const float* q = nullptr;
  const float* k = nullptr;
  float eps = 0;
};

// Where the kernel in front posts the one row of a pass, and where its output is to be posted (runtime/posted_rows.h).
struct PostedHeads {
  const uint32_t* q = nullptr;  // [num_heads * head_dim]; null: they are in memory once that kernel has ended
  const uint32_t* k = nullptr;
  const uint32_t* v = nullptr;
  RowPost out;
};

// ---- attention.cu
// Where the row is posted, and where its output is to be, with its peers; q is null where any of it is not.
PostedHeads FindPosted(DeviceContext& ctx, const AttentionArgs& args, PostPeers* peers);
// After the launch of a kernel that posts its output at `out`.
void OfferOutput(DeviceContext& ctx, const AttentionArgs& args, const RowPost& out);

// Quantized queries of a pass.
struct QueryCodes {
  uint32_t* words = nullptr;  // [rows][num_heads][head_dim / 4], byte = dim % 4
  float* scales = nullptr;    // [rows][num_heads]
};

// What the window modes (kPerHead, kPerRow) add: scales that belong to the whole pass of a sequence.
struct WindowScales {
  float* v_channels = nullptr;  // [sequences][num_kv_heads][head_dim]
  float* p_heads = nullptr;     // [sequences][num_heads]: largest probability, kPerHead only
};

// ---- prepare.cu: RoPE, and the append to the cache; one warp per row and head. No query heads, or no KV heads: what
// there is. slots, where not null: [rows] where in the cache, page * page_tokens + position in the page, that is not
// the place of the row's position.
// Floats or halves go to the cache, q is rotated in place.
void LaunchAppendValues(DeviceContext& ctx, const AttentionArgs& args, bool half, const int32_t* slots = nullptr);
// kPerToken: codes and scales go to the cache and to `q`; args.q is left alone.
void LaunchAppendCodes(DeviceContext& ctx, const AttentionArgs& args, int qk_q_max, int av_q_max, const QueryCodes& q,
                       const int32_t* slots = nullptr);

// ---- attention.cu: attention of rows whose keys and values are all in args.kv, by the kernels of `plan`.
// Rows of sequences that are long enough for tiles are in `tiles`, the others in `short_rows`.
struct AttendedRows {
  RowSet all, short_rows;
  TileSet tiles;
};
// kPerToken, and the modes of windows: codes of queries are in `q`.
void AttendCodes(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const AttentionPlan& plan,
                 const ScTables& qk, const ScTables& av, const QueryCodes& q, const WindowScales& window,
                 const AttendedRows& rows, const AttentionLimits& limits);
// kExact in fp32.
void AttendValues(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const AttentionPlan& plan,
                  const RowSet& rows, const AttentionLimits& limits);

// ---- window.cu: after LaunchAppendValues, quantizes q and the whole window of every sequence as kPerHead
// and kPerRow want it, into args.kv's code layer, `q` and `scales`. max_length bounds every sequence; sequences is
// their number, or a bound on it while a graph is recorded (spare entries then have no rows).
void LaunchQuantizeWindow(DeviceContext& ctx, const AttentionArgs& args, AttentionMode mode, int32_t sequences,
                          int32_t max_length, int qk_q_max, int av_q_max, const QueryCodes& q,
                          const WindowScales& scales);

// ---- row.cu: SC attention of single rows by count-table lookups. kPerToken with q.words null: the kernel
// quantizes and appends the rows of the pass itself; for passes of at most kFreshRows rows, all of them in `rows`.
// norm: of rows that are neither rotated nor quantized yet (q.words null), and head_dim is a multiple of 64; else none.
void LaunchScRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
                  const ScTables& av, const QueryCodes& q, const HeadNorm& norm, const WindowScales& scales,
                  const RowSet& rows, const ScoreSpill& spill);

// ---- dilated.cu: the same for kPerToken where pairs say what a row sees, in memory of the same size.
void LaunchDilatedRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
                       const ScTables& av, const QueryCodes& q, const DilatedPairs& pairs, const RowSet& rows,
                       const ScoreSpill& spill);
// The same for kPerToken where every (row, head) of q and of the probabilities has a stream length of its own. qk and av:
// of any length, for what all of them share.
// q.words null: fresh, as above. Requires: lengths that depend on their row alone, with bytes.
struct RowLengths {
  const ByteTable* q_tables = nullptr;  // [rows][num_heads]; not read where the kernel quantizes q
  LengthView qk, av;
  uint8_t* p_slots = nullptr;  // [rows][num_heads], written; null: nobody wants them
};
void LaunchMixedRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
                     const ScTables& av, const QueryCodes& q, const RowLengths& lengths, const RowSet& rows,
                     const ScoreSpill& spill);

// ---- split/: the same for kPerToken with every context cut over the whole GPU, where PlanSplit supports it.
void LaunchScSplit(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
                   const ScTables& av, const QueryCodes& q, const RowSet& rows, const SplitScratch& scratch);
// Whether it takes the row of a pass of one as it is posted, of a context of up to max_length.
bool SplitPolls(const DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, int32_t max_length);
// The same of that row, which it appends to the cache; posts its output. Requires: SplitPolls, posted.q.
void LaunchPostedSplit(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
                       const ScTables& av, const PostedHeads& posted, const PostPeers& peers, const RowSet& row,
                       const SplitScratch& scratch);

// The same of exact.cu.
void LaunchExactSplit(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const RowSet& rows,
                      const SplitScratch& scratch);

// ---- tile.cu: SC attention of tiles of rows by binary tensor cores, where PlanScTiles supports it. The row
// kernels take the rest, with the same bits.
void LaunchScTiles(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
                   const ScTables& av, const QueryCodes& q, const WindowScales& scales, const TileSet& tiles,
                   const TileBatch& batch);
// ---- wide/wide.cu: the same by wgmma, where PlanWideTiles supports it and TakesBatch.
void LaunchScWide(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
                  const ScTables& av, const QueryCodes& q, const TileSet& tiles, const TileBatch& batch);

// ---- exact.cu: fp32 attention of single rows in the contract's summation order.
void LaunchExactRows(DeviceContext& ctx, const AttentionArgs& args, const RowSet& rows, const ScoreSpill& spill);

// ---- half/: the fp16 baseline over a half cache, outside the bits contract.
// fresh: the row kernel rotates and appends the rows of the pass itself; for passes of at most kFreshRows rows, all of
// them in `rows`.
void LaunchHalfRows(DeviceContext& ctx, const AttentionArgs& args, const RowSet& rows, bool fresh);
void LaunchHalfTiles(DeviceContext& ctx, const AttentionArgs& args, const TileSet& tiles);

}  // namespace stoch::cuda
