// SPDX-License-Identifier: Apache-2.0
// RoPE, the KV append and causal attention in every mode. Which kernels run is PlanAttention's choice
// (kernels/plan/attention_plan.h); all SC and exact kernels give the same bits, so it is invisible.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/call_check.h"
#include "kernels/context_bucket.h"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/mixed.h"
#include "kernels/cuda/attention/shape.h"
#include "kernels/cuda/attention/tile_window.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/ops.h"
#include "kernels/family_check.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {
namespace {

int64_t OutputsOf(const AttentionArgs& args) { return int64_t{args.num_heads} * args.kv.head_dim; }

void Check(const AttentionCall& call, const CudaPass& pass) {
  CheckAttention(call, pass.rows());
  for (const PassSequence& sequence : pass.sequences()) {
    CheckAttentionSequence(call, sequence.length, sequence.num_pages);
  }
  if (pass.max_page() > 0) CheckAttentionPage(call, pass.max_page());
}

// What the host may assume of the pass: of the one just uploaded, or, while a graph is recorded, of every pass that it
// may be replayed for: those of the same ContextBucket.
struct Bounds {
  int32_t sequences = 0;  // the limit in both cases: scratch must not grow while a graph is recorded
  int32_t max_length = 0;
  AttendedRows rows;
};

Bounds MakeBounds(const CudaPass& pass, const KvCacheSpec& spec, bool recording) {
  Bounds bounds;
  bounds.sequences = static_cast<int32_t>(pass.limits().max_sequences);
  if (recording) {
    bounds.max_length = static_cast<int32_t>(
        LongestOfBucket(ContextBucket(pass.max_length()), pass.limits().max_pages_per_sequence * spec.page_tokens));
    bounds.rows.all = {nullptr, static_cast<int32_t>(pass.rows()), bounds.max_length};
    bounds.rows.short_rows = bounds.rows.all;
    return bounds;
  }
  bounds.max_length = pass.max_length();
  bounds.rows.all = {nullptr, static_cast<int32_t>(pass.rows()), bounds.max_length};
  bounds.rows.short_rows = {pass.view().short_rows, static_cast<int32_t>(pass.num_short_rows()),
                            pass.max_short_length()};
  bounds.rows.tiles = {pass.view().tiles, pass.tiles(), pass.batches()};
  return bounds;
}

// Rows that a call wants, once its pass is appended: few output rows go by row kernels, as rows of other lengths do.
constexpr int64_t kFewOutputs = 16;
bool TakesOutputs(const AttentionCall& call, const CudaPass& pass, bool recording) {
  return call.only_outputs && !recording && pass.num_output_rows() <= kFewOutputs;
}
AttendedRows OutputRowsOf(const CudaPass& pass) {
  AttendedRows rows;
  rows.all = {pass.view().output_rows, static_cast<int32_t>(pass.num_output_rows()), pass.max_length()};
  rows.short_rows = rows.all;
  return rows;
}

// Of rows behind a window, kernels that cut contexts read what the window reaches alone, and others all of it: those
// are planned for no more, where that is still theirs.
AttentionPlan PlanOf(const DeviceContext& ctx, const AttentionShape& shape, const AttentionArgs& args,
                     int32_t max_length, bool recording) {
  const AttentionPlan plan = PlanAttention(ctx.traits, shape, args.rows, ReachOf(args, max_length), recording);
  const bool cuts = plan.short_rows == AttentionKernel::kScSplit || plan.short_rows == AttentionKernel::kExactSplit;
  return cuts ? plan : PlanAttention(ctx.traits, shape, args.rows, max_length, recording);
}

AttentionLimits LimitsOf(const AttentionArgs& args, const CudaPass& pass) {
  const PassLimits& limits = pass.limits();
  return {limits.max_rows, limits.max_sequences, limits.max_pages_per_sequence * args.kv.page_tokens};
}

// Scratch of row kernels, planned for the limits of the pass, so that every pass and every recorded graph takes the same.
struct RowScratch {
  ScoreSpill spill;
  SplitScratch split;
};

// Requires: a scope of its own, opened after tiles are done with theirs.
RowScratch MakeRowScratch(DeviceContext& ctx, Scratch& scratch, const AttentionArgs& args, const AttentionShape& shape,
                          const AttentionLimits& limits) {
  const SpillPlan plan = PlanSpill(ctx.traits, shape, limits);
  RowScratch rows;
  ScoreSpill& spill = rows.spill;
  spill.rows_at_once = static_cast<int32_t>(plan.rows_at_once);
  if (plan.stride == 0) return rows;
  const int64_t heads = plan.rows_at_once * args.num_heads;
  spill.stride = plan.stride;
  spill.scores = scratch.Take<float>(plan.stride * heads);
  if (plan.parts == 0) return rows;
  SplitScratch& split = rows.split;
  split.scores = spill.scores;
  split.stride = plan.stride;
  split.rows = spill.rows_at_once;
  split.parts = static_cast<int32_t>(plan.parts);
  split.score_max = scratch.Take<float>(heads * plan.parts);
  split.weight_max = scratch.Take<float>(heads * plan.parts);
  split.lane_sums = scratch.Take<float>(heads * kSplitUnit);
  if (shape.mode == AttentionMode::kExact) {
    split.dot_lanes = scratch.Take<float>(heads * kDotLanes * args.kv.head_dim);
  } else {
    split.sums = scratch.Take<int32_t>(SplitSums(ctx.traits, shape, plan.rows_at_once));
  }
  split.done = scratch.Take<int32_t>(heads);
  return rows;
}

void RunScRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
               const ScTables& av, const QueryCodes& q, const HeadNorm& norm, const WindowScales& window,
               const RowSet& rows, const AttentionLimits& limits, AttentionKernel kernel) {
  Scratch scratch(ctx.workspace);
  const RowScratch memory = MakeRowScratch(ctx, scratch, args, shape, limits);
  // Memory that a graph recorded later needs is taken now, even by a pass without such rows.
  if (rows.count == 0) return;
  if (kernel == AttentionKernel::kScSplit) return LaunchScSplit(ctx, args, shape, qk, av, q, rows, memory.split);
  LaunchScRows(ctx, args, shape, qk, av, q, norm, window, rows, memory.spill);
}

void LaunchDilated(DeviceContext& ctx, const AttentionArgs& args, const CudaKvCache& cache, int layer,
                   const AttentionShape& shape, const DilatedPairs& pairs, const RowSet& rows,
                   const AttentionLimits& limits) {
  const ScTables& qk = ctx.tables.Get(cache.qk(layer));
  const ScTables& av = ctx.tables.Get(cache.av(layer));
  Scratch scratch(ctx.workspace);
  QueryCodes q;
  q.words = scratch.Take<uint32_t>(static_cast<int64_t>(args.rows) * args.num_heads * args.kv.head_dim / 4);
  q.scales = scratch.Take<float>(static_cast<int64_t>(args.rows) * args.num_heads);
  LaunchAppendCodes(ctx, args, qk.q_max, av.q_max, q);
  AttendDilated(ctx, args, shape, qk, av, q, pairs, rows, limits);
}

// Whether the pass is one row for kernels that cut contexts and take it as the kernel in front posts it.
bool SplitTakesPosted(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape,
                      const AttentionPlan& plan, const Bounds& bounds) {
  return plan.short_rows == AttentionKernel::kScSplit && bounds.rows.tiles.host.empty() &&
         SplitPolls(ctx, args, shape, bounds.max_length);
}

void LaunchSc(DeviceContext& ctx, const AttentionArgs& args, const CudaKvCache& cache, int layer,
              const AttentionShape& shape, const AttentionPlan& plan, const HeadNorm& norm, const Bounds& bounds,
              const AttentionLimits& limits) {
  const KvCacheSpec& spec = cache.spec();
  const ScTables& qk = ctx.tables.Get(cache.qk(layer));
  const ScTables& av = ctx.tables.Get(cache.av(layer));
  QueryCodes q;
  if (plan.is_fresh) return RunScRows(ctx, args, shape, qk, av, q, norm, {}, bounds.rows.all, limits, plan.short_rows);
  Scratch scratch(ctx.workspace);
  if (SplitTakesPosted(ctx, args, shape, plan, bounds)) {
    PostPeers peers;
    const PostedHeads posted = FindPosted(ctx, args, &peers);
    if (posted.q != nullptr) {
      const RowScratch memory = MakeRowScratch(ctx, scratch, args, shape, limits);
      return LaunchPostedSplit(ctx, args, shape, qk, av, posted, peers, bounds.rows.all, memory.split);
    }
  }
  q.words = scratch.Take<uint32_t>(static_cast<int64_t>(args.rows) * args.num_heads * spec.head_dim / 4);
  q.scales = scratch.Take<float>(static_cast<int64_t>(args.rows) * args.num_heads);
  WindowScales window;
  if (spec.mode == AttentionMode::kPerToken) {
    LaunchAppendCodes(ctx, args, qk.q_max, av.q_max, q);
  } else {
    const int64_t heads = static_cast<int64_t>(bounds.sequences) * args.num_heads;
    window.v_channels = scratch.Take<float>(static_cast<int64_t>(bounds.sequences) * spec.num_kv_heads * spec.head_dim);
    window.p_heads = scratch.Take<float>(heads);
    STOCH_CUDA(cudaMemsetAsync(window.p_heads, 0, static_cast<size_t>(heads) * sizeof(float), ctx.stream));
    LaunchAppendValues(ctx, args, false);
    LaunchQuantizeWindow(ctx, args, spec.mode, bounds.sequences, bounds.max_length, qk.q_max, av.q_max, q, window);
  }
  AttendCodes(ctx, args, shape, plan, qk, av, q, window, bounds.rows, limits);
}

// Rows of long sequences by wide tiles, all of them or none; whether it did.
bool LaunchMixedTiles(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape,
                      const MixedProducts& products, const MixedQueries& rows, const TileSet& tiles) {
  if (tiles.host.empty() || rows.wide_words == nullptr) return false;
  const ScOperator& qk = products.qk_ranks->longest();
  const ScOperator& av = products.av_ranks->longest();
  AttentionShape wide = shape;
  wide.swapped = true;
  wide.qk = ctx.tables.Traits(qk);
  wide.av = ctx.tables.Traits(av);
  const WidePlan plan = PlanWideTiles(ctx.traits, wide);
  const bool takes = std::all_of(tiles.batches.begin(), tiles.batches.end(),
                                 [&](const TileBatch& batch) { return TakesBatch(plan, batch.num_sequences); });
  if (!takes) return false;
  const WideLengths lengths{products.qk_ranks->tables(), rows.q_slots, products.av_ranks->tables(), products.av.view(),
                            rows.p_slots};
  AttentionArgs of_longest = args;
  of_longest.kv.qk_swapped = products.qk_ranks->swapped();
  of_longest.kv.av_swapped = products.av_ranks->swapped();
  for (const TileBatch& batch : tiles.batches) {
    LaunchMixedWide(ctx, of_longest, wide, ctx.tables.Get(qk), ctx.tables.Get(av), {rows.wide_words, rows.q.scales},
                    lengths, tiles, batch);
  }
  return true;
}

void RunMixed(DeviceContext& ctx, const AttentionArgs& args, const AttentionCall& call, const CudaKvCache& cache,
              const MixedProducts& products, const DilatedPairs& pairs, const Bounds& bounds, const CudaPass& pass,
              bool recording) {
  if (pairs.count > 0 || !TakesMixedRows(products)) {
    return LaunchMixedAttention(ctx, args, call.site, products, pairs, pass, recording);
  }
  AttentionShape shape = ShapeOf(ctx, cache, call.cache_layer, call.num_heads, cache.spec().num_kv_heads);
  shape.swapped = false;
  const ScTables& qk = ctx.tables.Get(cache.qk(call.cache_layer));
  const ScTables& av = ctx.tables.Get(cache.av(call.cache_layer));
  // One row: eight lose to an append of their own (docs/tuning/attention.md). Who observes wants the lengths of queries in memory.
  if (args.rows == 1 && ctx.observer == nullptr && bounds.rows.tiles.host.empty()) {
    Scratch of_rows(ctx.workspace);
    const RowScratch memory = MakeRowScratch(ctx, of_rows, args, shape, LimitsOf(args, pass));
    return LaunchMixedRows(ctx, args, shape, qk, av, {}, {nullptr, products.qk.view(), products.av.view(), nullptr},
                           bounds.rows.all, memory.spill);
  }
  Scratch scratch(ctx.workspace);
  const MixedQueries mixed = LaunchAppendMixed(ctx, scratch, args, products);
  const bool tiles = LaunchMixedTiles(ctx, args, shape, products, mixed, bounds.rows.tiles);
  Scratch of_rows(ctx.workspace);
  const RowScratch memory = MakeRowScratch(ctx, of_rows, args, shape, LimitsOf(args, pass));
  LaunchMixedRows(ctx, args, shape, qk, av, mixed.q,
                  {mixed.q_tables, products.qk.view(), products.av.view(), mixed.p_slots},
                  tiles ? bounds.rows.short_rows : bounds.rows.all, memory.spill);
  ShowMixedLengths(ctx, args, call.site, products, pass, mixed);
}

// The norm in front of RoPE for the kernel that rotates by itself; other kernels get their heads normed here.
HeadNorm NormOf(DeviceContext& ctx, const AttentionCall& call, const CudaKvCache& cache, const AttentionArgs& args,
                const Bounds& bounds, const DilatedPairs& pairs, bool recording) {
  if (call.norm == nullptr) return {};
  const KvCacheSpec& spec = cache.spec();
  constexpr int kHeadStep = 64;  // NormHead
  const bool may = spec.mode == AttentionMode::kPerToken && cache.mixed(call.cache_layer) == nullptr &&
                   pairs.count == 0 && spec.head_dim % kHeadStep == 0;
  if (may) {
    const AttentionShape shape = ShapeOf(ctx, cache, call.cache_layer, call.num_heads, spec.num_kv_heads);
    if (PlanOf(ctx, shape, args, bounds.max_length, recording).is_fresh) {
      CheckNormHeads(*call.norm);
      return {call.norm->q_weight.ptr<const float>(), call.norm->k_weight.ptr<const float>(), call.norm->eps};
    }
  }
  LaunchNormHeads(ctx, *call.norm);
  ctx.posted_rows().CountCall(false);  // as an op of its own: q and k are no longer what was posted
  return {};
}

}  // namespace

PostedHeads FindPosted(DeviceContext& ctx, const AttentionArgs& args, PostPeers* peers) {
  PostedHeads posted;
  if (args.rows != 1) return posted;
  const PostedRows& rows = ctx.posted_rows();
  const int64_t kv_count = int64_t{args.kv.num_kv_heads} * args.kv.head_dim;
  posted.k = rows.Find(args.k, kv_count);
  posted.v = rows.Find(args.v, kv_count);
  posted.out = rows.Next(args.out, OutputsOf(args), OutputsOf(args), peers);
  if (posted.k != nullptr && posted.v != nullptr && posted.out) posted.q = rows.Find(args.q, OutputsOf(args));
  return posted;
}

void OfferOutput(DeviceContext& ctx, const AttentionArgs& args, const RowPost& out) {
  ctx.posted_rows().Posted(out, OutputsOf(args));
  if (out.num_peers == 0) ctx.posted_rows().Offer(args.out, OutputsOf(args), out.words);
}

AttentionShape ShapeOf(DeviceContext& ctx, const CudaKvCache& cache, int layer, int num_heads, int num_kv_heads) {
  const KvCacheSpec& spec = cache.spec();
  AttentionShape shape;
  shape.mode = spec.mode;
  shape.precision = spec.precision;
  shape.num_heads = num_heads;
  shape.num_kv_heads = num_kv_heads;
  shape.head_dim = spec.head_dim;
  if (spec.mode != AttentionMode::kExact) {
    shape.qk = ctx.tables.Traits(cache.qk(layer));
    shape.av = ctx.tables.Traits(cache.av(layer));
  }
  shape.swapped = cache.view(layer).qk_swapped != nullptr;
  shape.stripes = spec.stripes;
  return shape;
}

AttentionArgs ArgsOf(DeviceContext& ctx, const AttentionCall& call, const CudaKvCache& cache, const PassView& pass) {
  const KvCacheSpec& spec = cache.spec();
  AttentionArgs args;
  args.pass = pass;
  args.kv = cache.view(call.cache_layer);
  args.q = call.q.ptr<float>();
  args.k = call.k.ptr<float>();
  args.v = call.v.ptr<float>();
  args.q_stride = call.q.step(0);
  args.k_stride = call.k.step(0);
  args.v_stride = call.v.step(0);
  args.rope = call.rope.ptr<float>();
  args.rope_stride = call.rope.step(0);
  args.out = call.out.ptr<float>();
  args.out_stride = call.out.step(0);
  args.rows = static_cast<int32_t>(call.q.dim(0));
  args.num_heads = call.num_heads;
  args.group = call.num_heads / spec.num_kv_heads;
  args.window = call.window;
  args.inv_sqrt = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  args.reporter = ctx.Reporter(call.site);
  return args;
}

void AttendCodes(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const AttentionPlan& plan,
                 const ScTables& qk, const ScTables& av, const QueryCodes& q, const WindowScales& window,
                 const AttendedRows& attended, const AttentionLimits& limits) {
  RowSet rows = attended.short_rows;
  if (!attended.tiles.host.empty()) {
    if (plan.long_rows == AttentionKernel::kScTiles || plan.long_rows == AttentionKernel::kScWide) {
      const WidePlan wide = PlanWideTiles(ctx.traits, shape);
      for (const TileBatch& batch : attended.tiles.batches) {
        if (TakesBatch(wide, batch.num_sequences)) {
          LaunchScWide(ctx, args, shape, qk, av, q, attended.tiles, batch);
        } else {
          LaunchScTiles(ctx, args, shape, qk, av, q, window, attended.tiles, batch);
        }
      }
    } else {
      rows = attended.all;
    }
  }
  RunScRows(ctx, args, shape, qk, av, q, {}, window, rows, limits, plan.short_rows);
}

void AttendDilated(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
                   const ScTables& av, const QueryCodes& q, const DilatedPairs& pairs, const RowSet& rows,
                   const AttentionLimits& limits) {
  Scratch scratch(ctx.workspace);
  const RowScratch memory = MakeRowScratch(ctx, scratch, args, shape, limits);
  if (rows.count == 0) return;
  LaunchDilatedRows(ctx, args, shape, qk, av, q, pairs, rows, memory.spill);
}

void AttendValues(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const AttentionPlan& plan,
                  const RowSet& rows, const AttentionLimits& limits) {
  Scratch scratch(ctx.workspace);
  const RowScratch memory = MakeRowScratch(ctx, scratch, args, shape, limits);
  if (rows.count == 0) return;
  if (plan.short_rows == AttentionKernel::kExactSplit) {
    return LaunchExactSplit(ctx, args, shape, rows, memory.split);
  }
  LaunchExactRows(ctx, args, rows, memory.spill);
}

void LaunchAttention(DeviceContext& ctx, const AttentionCall& call) {
  CheckAttentionHandles(call);
  const auto& cache = static_cast<const CudaKvCache&>(*call.cache);
  const auto& pass = static_cast<const CudaPass&>(*call.pass);
  Check(call, pass);
  const AttentionArgs args = ArgsOf(ctx, call, cache, pass.view());
  const KvCacheSpec& spec = cache.spec();
  ctx.posted_rows().Enable(false);
  const bool recording = ctx.IsRecording();
  Bounds bounds = MakeBounds(pass, spec, recording);
  const AttentionLimits limits = LimitsOf(args, pass);
  const DilatedPairs pairs = MakeDilatedPairs(call.dilated, call.first_head);
  const HeadNorm norm = NormOf(ctx, call, cache, args, bounds, pairs, recording);
  if (const MixedProducts* mixed = cache.mixed(call.cache_layer); mixed != nullptr) {
    return RunMixed(ctx, args, call, cache, *mixed, pairs, bounds, pass, recording);
  }
  const AttentionShape shape = ShapeOf(ctx, cache, call.cache_layer, call.num_heads, spec.num_kv_heads);
  if (pairs.count > 0) {
    const RowSet rows = TakesOutputs(call, pass, recording) ? OutputRowsOf(pass).all : bounds.rows.all;
    return LaunchDilated(ctx, args, cache, call.cache_layer, shape, pairs, rows, limits);
  }
  AttentionPlan plan = PlanOf(ctx, shape, args, bounds.max_length, recording);
  if (!plan.is_fresh && TakesOutputs(call, pass, recording)) {
    bounds.rows = OutputRowsOf(pass);
    AttentionArgs few = args;
    few.rows = std::max(1, bounds.rows.all.count);
    const AttentionPlan of_few = PlanOf(ctx, shape, few, bounds.max_length, recording);
    if (!of_few.is_fresh) plan.short_rows = of_few.short_rows;
  }
  // Not where a kernel in between norms the heads: attention would neither poll nor post.
  const bool may_split = call.norm == nullptr && SplitTakesPosted(ctx, args, shape, plan, bounds);
  ctx.posted_rows().Enable(spec.mode == AttentionMode::kPerToken && ((args.rows == 1 && plan.is_fresh) || may_split));
  if (spec.mode != AttentionMode::kExact) {
    return LaunchSc(ctx, args, cache, call.cache_layer, shape, plan, norm, bounds, limits);
  }
  const bool half = spec.precision == Precision::kFp16;
  if (plan.is_fresh) return LaunchHalfRows(ctx, args, bounds.rows.all, true);
  LaunchAppendValues(ctx, args, half);
  if (!half) return AttendValues(ctx, args, shape, plan, bounds.rows.all, limits);
  RowSet rows = bounds.rows.short_rows;
  if (!bounds.rows.tiles.host.empty()) {
    if (plan.long_rows == AttentionKernel::kHalfTiles) {
      LaunchHalfTiles(ctx, args, bounds.rows.tiles);
    } else {
      rows = bounds.rows.all;
    }
  }
  if (rows.count > 0) LaunchHalfRows(ctx, args, rows, false);
}

}  // namespace stoch::cuda
