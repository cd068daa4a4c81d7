// SPDX-License-Identifier: Apache-2.0
// Launchers of the routes of attention (kernels/plan/attention/route.h) and the arguments that they share. Private to
// this folder and to fabric/ring/.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/attention/dilated.cuh"
#include "kernels/cuda/attention/kv_cache.h"
#include "kernels/cuda/handover/row_post.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/pass.h"
#include "kernels/cuda/runtime/stripe_view.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/plan/attention/plan.h"

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

// Rows of a launch: list[0..count), or rows 0..count-1 where list is null; no context is longer than max_length.
struct RowSet {
  const int32_t* list = nullptr;
  int32_t count = 0;
  int32_t max_length = 0;
};

// Calls launch<kSlots>() of the instance for heads of up to 32 kSlots dimensions.
template <typename Launch>
void DispatchSlots(int head_dim, const Launch& launch) {
  if (head_dim <= 32) return launch.template operator()<1>();
  if (head_dim <= 64) return launch.template operator()<2>();
  if (head_dim <= 128) return launch.template operator()<4>();
  launch.template operator()<8>();
}

// Scores of contexts that are too long for shared memory: [rows_at_once][num_heads][stride]. Planned for the limits of
// the pass, so that a recorded graph takes the same scratch as the eager run before it.
struct ScoreSpill {
  float* scores = nullptr;
  int64_t stride = 0;
  int32_t rows_at_once = 32768;  // of one launch; gridDim is limited to 65535
};

// Scratch of one launch of the split kernels, for `rows` rows; a part is a whole number of units of kSplitUnit positions.
struct SplitScratch {
  float* scores = nullptr;      // [rows][num_heads][stride]: scores, then exponentials, then weights
  float* score_max = nullptr;   // [rows][num_heads][parts]: of every part of the scores
  float* weight_max = nullptr;  // [rows][num_heads][parts]: of the values that are quantized
  float* lane_sums = nullptr;   // [rows][num_heads][kRowLanes]
  int32_t* sums = nullptr;      // [rows][num_heads][head_dim]: counts of p v
  float* dot_lanes = nullptr;   // fp32, instead of sums: [rows][num_heads][kDotLanes][head_dim]
  int32_t* done = nullptr;      // [rows][kv heads * head_blocks]: parts that added theirs
  int64_t stride = 0;
  int32_t parts = 0;
  int32_t rows = 0;
};

// Scratch of row kernels, planned for the limits of the pass, so that every pass and every recorded graph takes as much.
struct RowScratch {
  ScoreSpill spill;
  SplitScratch split;
};

// Tiles of a pass: device memory, and the host's copy.
struct TileSet {
  const QueryTile* device = nullptr;
  std::span<const QueryTile> host;  // by batch, longest context first
  std::span<const TileBatch> batches;
};

// Rows of a call: where its plan takes tiles, those of long sequences are `tiles` and the others short_rows.
struct AttendedRows {
  RowSet all, short_rows;
  TileSet tiles;
};

// Weights of an RMSNorm of the heads of q and k before RoPE (NormHeadsCall); null: none.
struct HeadNorm {
  const float* q = nullptr;
  const float* k = nullptr;
  float eps = 0;
};

// Words of the one row of a pass that the previous kernel posts, and where its output is to be posted
// (handover/row_channel.h).
struct PostedHeads {
  const uint32_t* q = nullptr;  // [num_heads * head_dim]; null: q, k and v are in memory once that kernel has ended
  const uint32_t* k = nullptr;
  const uint32_t* v = nullptr;
  RowPost out;
};

// Quantized queries of a pass.
struct QueryCodes {
  uint32_t* words = nullptr;  // [rows][num_heads][head_dim / 4], byte = dim % 4
  float* scales = nullptr;    // [rows][num_heads]
};

// Scales of whole passes of a sequence, in the modes of windows (kPerHead, kPerRow).
struct WindowScales {
  float* v_channels = nullptr;  // [sequences][num_kv_heads][head_dim]
  float* p_heads = nullptr;     // [sequences][num_heads]: largest probability, kPerHead only
};

// Operands of SC attention besides AttentionArgs.
struct ScOperands {
  ScTables qk, av;
  QueryCodes q;         // words null: the row kernel rotates, quantizes and appends by itself
  HeadNorm norm;        // only with q.words null, and head_dim a multiple of 64
  PostedHeads posted;   // only with AttentionHandover::kWords; where posted.q is set, q is not
  PostPeers peers;      // of posted.out
  WindowScales window;  // kPerHead, kPerRow
};

// ---- prepare.cu: RoPE, and the append to the cache; one warp per row and head. Takes no query heads, or no KV heads,
// where their number is 0. slots, where not null: [rows] place in the cache, page * page_tokens + position in the page,
// instead of the place of the row's position.
// Floats or halves go to the cache, q is rotated in place.
void LaunchAppendValues(DeviceContext& ctx, const AttentionArgs& args, bool half, const int32_t* slots = nullptr);
// kPerToken: codes and scales go to the cache and to `q`; args.q is left alone.
void LaunchAppendCodes(DeviceContext& ctx, const AttentionArgs& args, int qk_q_max, int av_q_max, const QueryCodes& q,
                       const int32_t* slots = nullptr);

// ---- window.cu: after LaunchAppendValues, quantizes q and the whole window of every sequence for kPerHead and kPerRow,
// into args.kv's code layer, `q` and `scales`. max_length bounds every sequence; sequences is their number, or a bound
// on it while a graph is recorded (spare entries then have no rows).
void LaunchQuantizeWindow(DeviceContext& ctx, const AttentionArgs& args, AttentionMode mode, int32_t sequences,
                          int32_t max_length, int qk_q_max, int av_q_max, const QueryCodes& q,
                          const WindowScales& scales);

// Attention of rows whose keys and values are all in args.kv, by the routes of `plan`.
RowScratch MakeRowScratch(DeviceContext& ctx, Scratch& scratch, const AttentionArgs& args, const AttentionShape& shape,
                          const SpillPlan& plan);
// SC with uniform lengths, of positions that `pairs` admit; where operands.q.words is null, plan.short_rows' kernel appends.
void AttendCodes(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const AttentionPlan& plan,
                 const ScOperands& operands, const DilatedPairs& pairs, const AttendedRows& rows);
// fp32, or fp16 where args.kv has halves. exp: a table in place of Exp, which kExactRows takes.
void AttendValues(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const AttentionPlan& plan,
                  const RowSet& rows, const NonlinearView& exp = {});

// ---- row.cu: SC attention of single rows by count-table lookups. route: kScFreshRows (q.words null; passes of at most
// kFreshRows rows, all of them in `rows`), kScRows, kScWindowRows.
void LaunchScRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, AttentionRoute route,
                  const ScOperands& operands, const RowSet& rows, const ScoreSpill& spill);
// kPerToken with a stream length for every (row, head) of q and of the probabilities. operands: of any length, for what
// all of them share. route: kMixedFresh (q.words null; one row), kMixedRows. Requires: lengths kByRow or kByTile.
struct RowLengths {
  const ByteTable* q_tables = nullptr;  // [rows][num_heads]; not read where the kernel quantizes q
  LengthView qk, av;
  uint8_t* p_slots = nullptr;  // [rows][num_heads], written; null: not needed
};
void LaunchMixedRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, AttentionRoute route,
                     const ScOperands& operands, const RowLengths& lengths, const RowSet& rows,
                     const ScoreSpill& spill);
// ---- dilated.cu: kPerToken, of positions that `pairs` admit, in scratch of the same size.
void LaunchDilatedRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape,
                       const ScOperands& operands, const DilatedPairs& pairs, const RowSet& rows,
                       const ScoreSpill& spill);

// ---- split/: single rows with every context cut over the whole GPU, by the kernels of `plan`.
void LaunchScSplit(DeviceContext& ctx, const AttentionArgs& args, const SplitPlan& plan, const ScOperands& operands,
                   const RowSet& rows, const SplitScratch& scratch);
void LaunchExactSplit(DeviceContext& ctx, const AttentionArgs& args, const SplitPlan& plan, const RowSet& rows,
                      const SplitScratch& scratch);

// ---- tile.cu and hopper/wide.cu: SC attention of a batch of tiles, by binary tensor cores (mma.sync) and by wgmma.
// Requires: for wide tiles TakesBatch.
void LaunchScTiles(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTilePlan& plan,
                   const ScOperands& operands, const TileSet& tiles, const TileBatch& batch);
void LaunchScWide(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const WidePlan& plan,
                  const ScOperands& operands, const TileSet& tiles, const TileBatch& batch);

// ---- exact.cu: attention of single rows in floats, over keys and values in fp32 or fp16, in the contract's summation order.
void LaunchExactRows(DeviceContext& ctx, const AttentionArgs& args, const RowSet& rows, const ScoreSpill& spill,
                     const NonlinearView& exp = {});

// ---- ../baseline/attention.cu: prompts of the fp16 baseline. Requires: head_dim 64 or 128.
void LaunchHalfTiles(DeviceContext& ctx, const AttentionArgs& args, const TileSet& tiles);

}  // namespace stoch::cuda
