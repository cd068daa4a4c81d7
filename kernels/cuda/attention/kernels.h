// SPDX-License-Identifier: Apache-2.0
// Launchers of the attention routes (kernels/plan/attention/route.h) and the arguments that the launchers share.
// Private to this folder and to fabric/ring/.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/attention/kv_cache.h"
#include "kernels/cuda/handover/row_post.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/pass.h"
#include "kernels/cuda/runtime/stripe_view.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/plan/attention/plan.h"

namespace stoch::cuda {

// Operands of one checked AttentionCall; passed by value to kernels.
struct AttentionArgs {
  PassView pass;
  KvView kv;
  // Queries of the pass before RoPE [rows][num_heads * head_dim]. LaunchAppendValues rotates q in place for the kernels
  // that need rotated floats (fp32, fp16, whole windows).
  float* q = nullptr;
  // Keys and values of the pass before RoPE, [rows][num_kv_heads * head_dim] each.
  const float* k = nullptr;
  const float* v = nullptr;
  // Floats from one row of q, k and v to the next.
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  // [positions of rope_stripe][head_dim]: for every position the cosines of the RoPE pairs, then the sines; rows are
  // rope_stride floats apart.
  const float* rope = nullptr;
  int64_t rope_stride = 0;
  // Positions that `rope` has a row for: all of them, or this device's stripe if positions are dealt over devices.
  StripeView rope_stripe;
  // Attention output [rows][num_heads * head_dim], rows out_stride floats apart.
  float* out = nullptr;
  int64_t out_stride = 0;
  int32_t rows = 0;
  int32_t num_heads = 0;
  int32_t group = 1;   // query heads per KV head (GQA group)
  int32_t window = 0;  // sliding window in positions: the row at position i sees i - window + 1 .. i; 0: no window
  float inv_sqrt = 0;  // float(1 / sqrt(head_dim)), the factor of every score
  // Soft cap of scores (AttentionCall::score_cap), read by exact.cu and kernels/cuda/plain; 0: none.
  float score_cap = 0;
  // Sets the error flag for the call's layer and op if a number is not finite.
  SiteReporter reporter;
};

// Rows that one launch attends to: list[0..count), or rows 0 .. count - 1 of the pass if list is null. No row sees more
// than max_length positions.
struct RowSet {
  const int32_t* list = nullptr;
  int32_t count = 0;
  int32_t max_length = 0;
};

// Calls launch.operator()<kSlots>() for the kernel instance with kSlots = 1, 2, 4 or 8 dimensions per lane of a warp,
// the smallest with head_dim <= 32 * kSlots.
template <typename Launch>
void DispatchSlots(int head_dim, const Launch& launch) {
  if (head_dim <= 32) return launch.template operator()<1>();
  if (head_dim <= 64) return launch.template operator()<2>();
  if (head_dim <= 128) return launch.template operator()<4>();
  launch.template operator()<8>();
}

// Memory for the scores of contexts that are too long for shared memory. Sized by the limits of the pass, so that a
// recorded graph takes the same scratch as the eager run before it.
struct ScoreSpill {
  float* scores = nullptr;  // [rows_at_once][num_heads][stride]; null if every context fits in shared memory
  int64_t stride = 0;       // scores from one (row, head) to the next
  // Rows of one launch at most; the default stays below the 65535 blocks of gridDim.y and gridDim.z.
  int32_t rows_at_once = 32768;
};

// Scratch of one launch of the split kernels, which cut the context of a row into parts of whole units (kSplitUnit
// positions).
struct SplitScratch {
  // [rows][num_heads][stride]: scores, then exponentials, then weights (the numbers to quantize)
  float* scores = nullptr;
  float* score_max = nullptr;   // [rows][num_heads][parts]: the largest score of each part
  float* weight_max = nullptr;  // [rows][num_heads][parts]: the largest weight of each part
  float* lane_sums = nullptr;   // [rows][num_heads][kRowLanes]: the softmax sum, lane by lane (kernels/math/reduce.h)
  int32_t* sums = nullptr;      // SC: [rows][num_heads][head_dim] sums of the counts of p v; null in fp32
  float* dot_lanes = nullptr;   // fp32: [rows][num_heads][kDotLanes][head_dim] lanes of p v; null in SC
  // [rows][num_kv_heads * head_blocks]: number of parts (fp32: lanes) of p v that have been added; the block that adds
  // the last one writes the outputs.
  int32_t* done = nullptr;
  int64_t stride = 0;  // positions per (row, head) in `scores`
  int32_t parts = 0;   // parts of a row, at most
  int32_t rows = 0;    // rows that the scratch has room for
};

// Scratch of the row kernels, sized by the limits of the pass, so that every pass and every recorded graph takes the
// same amount.
struct RowScratch {
  ScoreSpill spill;
  SplitScratch split;
};

// The tiles of a pass, each up to kQueryTile rows of a long sequence, in device memory with a copy on the host.
struct TileSet {
  // The tiles, batch after batch, the longest context first within a batch.
  const QueryTile* device = nullptr;
  std::span<const QueryTile> host;
  // Batches of tiles. A batch covers the sequences whose keys and values are packed into scratch at the same time.
  std::span<const TileBatch> batches;
};

// Rows of a call. If the plan takes tiles, `tiles` has the rows of long sequences and short_rows all other rows; `all`
// has every row.
struct AttendedRows {
  RowSet all, short_rows;
  TileSet tiles;
};

// Weights [head_dim] of the RMSNorm of q and k heads before RoPE (NormHeadsCall). Null pointers: no norm.
struct HeadNorm {
  const float* q = nullptr;
  const float* k = nullptr;
  float eps = 0;  // added to the mean square before the root
};

// A pass of one row whose q, k and v the previous kernel still writes word by word: the words to poll, and where the
// attention output is posted for the next kernel. A word is 0 until the float has been written to it
// (handover/row_channel.h).
struct PostedHeads {
  // Words of q [num_heads * head_dim]. Null: nothing is polled, and q, k and v are complete when the previous kernel
  // ends.
  const uint32_t* q = nullptr;
  // Words of k and v, [num_kv_heads * head_dim] each.
  const uint32_t* k = nullptr;
  const uint32_t* v = nullptr;
  // Where this kernel posts the output row; the next kernel may poll it before this one has ended.
  RowPost out;
};

// Quantized queries of a pass: codes and the scale of each (row, head).
struct QueryCodes {
  uint32_t* words = nullptr;  // codes [rows][num_heads][head_dim / 4], byte = dim % 4; null: not quantized yet
  float* scales = nullptr;    // [rows][num_heads]: the number that one level step of a query head stands for
};

// Scales that span all rows of a sequence, in the modes kPerHead and kPerRow, which quantize whole windows.
struct WindowScales {
  float* v_channels = nullptr;  // [sequences][num_kv_heads][head_dim]: scales of the value channels
  float* p_heads = nullptr;     // kPerHead: [sequences][num_heads], the largest probability of a head; kPerRow: unused
};

// Operands of SC attention besides AttentionArgs.
struct ScOperands {
  // Count tables of the operators of q k and of p v.
  ScTables qk, av;
  QueryCodes q;         // codes of the queries; words null: the attention kernel rotates, quantizes and appends
  HeadNorm norm;        // RMSNorm of the heads; requires q.words null and head_dim a multiple of 64
  PostedHeads posted;   // only with Handover::kWords; if posted.q is set, q.words is null
  PostPeers peers;      // peer GPUs that also receive posted.out
  WindowScales window;  // scales of the modes kPerHead and kPerRow
};

// ---- prepare.cu: RoPE and the append to the KV cache, one warp per (row, head). slots [rows], if not null, gives the
// place of each row in the cache (page * page_tokens + position in the page) in place of the page table. A call with 0
// query heads only appends keys and values; one with 0 KV heads only rotates queries (LaunchAppendCodes: and quantizes
// them).
// Writes keys and values as floats, or as halves if `half`, and rotates args.q in place.
void LaunchAppendValues(DeviceContext& ctx, const AttentionArgs& args, bool half, const int32_t* slots = nullptr);
// Mode kPerToken, in which each head vector has a scale of its own: quantizes the vectors; keys and values go to the
// cache and queries to `q`, as codes and scales. args.q stays as it is.
void LaunchAppendCodes(DeviceContext& ctx, const AttentionArgs& args, int qk_q_max, int av_q_max, const QueryCodes& q,
                       const int32_t* slots = nullptr);

// ---- window.cu: modes kPerHead and kPerRow, after LaunchAppendValues. Quantizes q and the whole window (all positions
// so far) of every sequence. Codes of keys and values go to args.kv.k_words and v_words, scales of keys to
// args.kv.k_scales, codes and scales of queries to `q`, scales of value channels to `scales`.
// max_length bounds the length of every sequence. sequences is the number of sequences, or an upper bound while a graph
// is recorded (spare entries of the pass have no rows).
void LaunchQuantizeWindow(DeviceContext& ctx, const AttentionArgs& args, AttentionMode mode, int32_t sequences,
                          int32_t max_length, int qk_q_max, int av_q_max, const QueryCodes& q,
                          const WindowScales& scales);

// Takes the memory that AttendCodes or AttendValues needs for single rows from `scratch`, with the sizes in `plan`.
RowScratch MakeRowScratch(DeviceContext& ctx, Scratch& scratch, const AttentionArgs& args, const AttentionShape& shape,
                          const SpillPlan& plan);
// Runs dense SC attention of rows, with one stream length per product, by the routes of `plan`. The rows' keys and
// values are in args.kv already, unless operands.q.words is null: then the kernel of plan.short_rows quantizes the rows
// and appends them.
void AttendCodes(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const AttentionPlan& plan,
                 const ScOperands& operands, const AttendedRows& rows);
// Runs attention without SC on rows whose keys and values are in args.kv, in fp32, or with halves in the cache in fp16.
// exp: the table that kExactRows uses in place of Exp; empty: none.
void AttendValues(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const AttentionPlan& plan,
                  const RowSet& rows, const NonlinearView& exp = {});

// ---- row.cu: SC attention of single rows by count-table lookups. route: kScFreshRows (requires q.words null and a
// pass of at most kFreshRows rows, all of them in `rows`), kScRows or kScWindowRows.
void LaunchScRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, AttentionRoute route,
                  const ScOperands& operands, const RowSet& rows, const ScoreSpill& spill);
// Stream lengths of single rows in mode kPerToken: one length for every (row, head) of q and of the probabilities.
struct RowLengths {
  // Count table of each query [rows][num_heads]; unused in kMixedFresh, whose kernel quantizes q and finds the table.
  const ByteTable* q_tables = nullptr;
  // Tables of all lengths of q k and of p v, and the rules that pick a length.
  LengthView qk, av;
  // Index of the length of each row of probabilities [rows][num_heads], written by the kernel; null: not needed.
  uint8_t* p_slots = nullptr;
};
// Launches the row kernel for mixed stream lengths. operands.qk and operands.av are the tables of any one length; only
// members that are equal for all lengths are read. route: kMixedRows, or kMixedFresh (requires q.words null and one
// row). Requires: AttentionLengths kByRow or kByTile.
void LaunchMixedRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, AttentionRoute route,
                     const ScOperands& operands, const RowLengths& lengths, const RowSet& rows,
                     const ScoreSpill& spill);

// ---- split/: attention of single rows, each context split over all SMs, by the kernels that `plan` selects.
// LaunchScSplit: with SC. LaunchExactSplit: without SC, in fp32 or fp16.
void LaunchScSplit(DeviceContext& ctx, const AttentionArgs& args, const SplitPlan& plan, const ScOperands& operands,
                   const RowSet& rows, const SplitScratch& scratch);
void LaunchExactSplit(DeviceContext& ctx, const AttentionArgs& args, const SplitPlan& plan, const RowSet& rows,
                      const SplitScratch& scratch);

// ---- SC attention of one batch of tiles: LaunchScTiles (tile.cu) on binary mma.sync, LaunchScWide (hopper/wide.cu) on
// binary wgmma. LaunchScWide requires TakesBatch(plan, batch.num_sequences).
void LaunchScTiles(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTilePlan& plan,
                   const ScOperands& operands, const TileSet& tiles, const TileBatch& batch);
void LaunchScWide(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const WidePlan& plan,
                  const ScOperands& operands, const TileSet& tiles, const TileBatch& batch);

// ---- exact.cu: attention of single rows without SC, over fp32 or fp16 keys and values, with sums in the order of
// kernels/math/reduce.h. exp: table in place of Exp; empty: none.
void LaunchExactRows(DeviceContext& ctx, const AttentionArgs& args, const RowSet& rows, const ScoreSpill& spill,
                     const NonlinearView& exp = {});

// ---- ../baseline/attention.cu: attention of prompts in the fp16 baseline, in tiles of 64 rows. Requires: head_dim 64
// or 128.
void LaunchHalfTiles(DeviceContext& ctx, const AttentionArgs& args, const TileSet& tiles);

}  // namespace stoch::cuda
