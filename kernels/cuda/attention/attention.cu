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
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/ops.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {
namespace {

AttentionArgs Check(DeviceContext& ctx, const AttentionCall& call, const CudaKvCache& cache, const CudaPass& pass) {
  CheckAttention(call, pass.rows());
  if (!call.dilated.empty()) Reject(call.site, "dilated attention has no kernel on a GPU: give --device cpu");
  for (const PassSequence& sequence : pass.sequences()) {
    CheckAttentionSequence(call, sequence.length, sequence.num_pages);
  }
  if (pass.max_page() > 0) CheckAttentionPage(call, pass.max_page());

  AttentionArgs args;
  args.pass = pass.view();
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
  args.rows = static_cast<int32_t>(pass.rows());
  args.num_heads = call.num_heads;
  args.group = call.num_heads / cache.spec().num_kv_heads;
  args.window = call.window;
  args.inv_sqrt = static_cast<float>(1.0 / std::sqrt(static_cast<double>(cache.spec().head_dim)));
  args.finite = ctx.Reporter(call.site);
  return args;
}

// As MakeAttentionShape, with the operators' traits that are kept with their tables.
AttentionShape ShapeOf(DeviceContext& ctx, const CudaKvCache& cache, int layer, int num_heads, bool swapped) {
  const KvCacheSpec& spec = cache.spec();
  AttentionShape shape;
  shape.mode = spec.mode;
  shape.precision = spec.precision;
  shape.num_heads = num_heads;
  shape.num_kv_heads = spec.num_kv_heads;
  shape.head_dim = spec.head_dim;
  if (spec.mode != AttentionMode::kExact) {
    shape.qk = ctx.tables.Traits(cache.qk(layer));
    shape.av = ctx.tables.Traits(cache.av(layer));
  }
  shape.swapped = swapped;
  return shape;
}

// What the host may assume of the pass: of the one just uploaded, or, while a graph is recorded, of every pass that it
// may be replayed for: those of the same ContextBucket.
struct Bounds {
  int32_t sequences = 0;  // the limit in both cases: scratch must not grow while a graph is recorded
  int32_t max_length = 0;
  RowSet short_rows;
  TileSet tiles;
};

Bounds MakeBounds(const CudaPass& pass, const KvCacheSpec& spec, bool recording) {
  Bounds bounds;
  bounds.sequences = static_cast<int32_t>(pass.limits().max_sequences);
  if (recording) {
    bounds.max_length = static_cast<int32_t>(
        LongestOfBucket(ContextBucket(pass.max_length()), pass.limits().max_pages_per_sequence * spec.page_tokens));
    bounds.short_rows = {nullptr, static_cast<int32_t>(pass.rows()), bounds.max_length};
    return bounds;
  }
  bounds.max_length = pass.max_length();
  bounds.short_rows = {pass.view().short_rows, static_cast<int32_t>(pass.num_short_rows()), pass.max_short_length()};
  bounds.tiles = {pass.view().tiles, pass.tiles(), pass.batches()};
  return bounds;
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
                          const CudaPass& pass) {
  const SpillPlan plan = PlanSpill(ctx.traits, shape, LimitsOf(args, pass));
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
    split.sums = scratch.Take<int32_t>(heads * args.kv.head_dim);
  }
  split.done = scratch.Take<int32_t>(heads);
  return rows;
}

void RunScRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
               const ScTables& av, const QueryCodes& q, const WindowScales& window, const RowSet& rows,
               const CudaPass& pass, AttentionKernel kernel) {
  Scratch scratch(ctx.workspace);
  const RowScratch memory = MakeRowScratch(ctx, scratch, args, shape, pass);
  // Memory that a graph recorded later needs is taken now, even by a pass without such rows.
  if (rows.count == 0) return;
  if (kernel == AttentionKernel::kScSplit) return LaunchScSplit(ctx, args, shape, qk, av, q, rows, memory.split);
  LaunchScRows(ctx, args, shape, qk, av, q, window, rows, memory.spill);
}

void LaunchSc(DeviceContext& ctx, const AttentionArgs& args, const CudaKvCache& cache, int layer,
              const AttentionShape& shape, const AttentionPlan& plan, const Bounds& bounds, const CudaPass& pass) {
  const KvCacheSpec& spec = cache.spec();
  const ScTables& qk = ctx.tables.Get(cache.qk(layer));
  const ScTables& av = ctx.tables.Get(cache.av(layer));
  const RowSet all_rows{nullptr, args.rows, bounds.max_length};
  QueryCodes q;
  if (plan.is_fresh) return RunScRows(ctx, args, shape, qk, av, q, {}, all_rows, pass, plan.short_rows);
  Scratch scratch(ctx.workspace);
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
  RowSet rows = bounds.short_rows;
  if (!bounds.tiles.host.empty()) {
    if (plan.long_rows == AttentionKernel::kScTiles || plan.long_rows == AttentionKernel::kScWide) {
      const WidePlan wide = PlanWideTiles(ctx.traits, shape);
      for (const TileBatch& batch : bounds.tiles.batches) {
        if (TakesBatch(wide, batch.num_sequences)) {
          LaunchScWide(ctx, args, shape, qk, av, q, bounds.tiles, batch);
        } else {
          LaunchScTiles(ctx, args, shape, qk, av, q, window, bounds.tiles, batch);
        }
      }
    } else {
      rows = all_rows;
    }
  }
  RunScRows(ctx, args, shape, qk, av, q, window, rows, pass, plan.short_rows);
}

void RunMixed(DeviceContext& ctx, const AttentionArgs& args, const AttentionCall& call, const CudaKvCache& cache,
              const MixedProducts& products, const Bounds& bounds, const CudaPass& pass, bool recording) {
  if (!TakesMixedRows(products)) return LaunchMixedAttention(ctx, args, call.site, products, pass, recording);
  const AttentionShape shape = ShapeOf(ctx, cache, call.cache_layer, call.num_heads, false);
  Scratch scratch(ctx.workspace);
  const RowScratch memory = MakeRowScratch(ctx, scratch, args, shape, pass);
  LaunchMixedRowAttention(ctx, args, call.site, shape, products, ctx.tables.Get(cache.qk(call.cache_layer)),
                          ctx.tables.Get(cache.av(call.cache_layer)), pass, bounds.max_length, memory.spill);
}

}  // namespace

void LaunchAttention(DeviceContext& ctx, const AttentionCall& call) {
  CheckAttentionHandles(call);
  const auto& cache = static_cast<const CudaKvCache&>(*call.cache);
  const auto& pass = static_cast<const CudaPass&>(*call.pass);
  const AttentionArgs args = Check(ctx, call, cache, pass);
  const KvCacheSpec& spec = cache.spec();
  const bool recording = ctx.IsRecording();
  const Bounds bounds = MakeBounds(pass, spec, recording);
  if (const MixedProducts* mixed = cache.mixed(call.cache_layer); mixed != nullptr) {
    return RunMixed(ctx, args, call, cache, *mixed, bounds, pass, recording);
  }
  const AttentionShape shape = ShapeOf(ctx, cache, call.cache_layer, call.num_heads, args.kv.qk_swapped != nullptr);
  AttentionPlan plan = PlanAttention(ctx.traits, shape, args.rows, bounds.max_length, recording);
  // Kernels for tiles have no window.
  if (args.window > 0 && args.window < bounds.max_length) plan.long_rows = plan.short_rows;
  if (spec.mode != AttentionMode::kExact) {
    return LaunchSc(ctx, args, cache, call.cache_layer, shape, plan, bounds, pass);
  }
  const bool half = spec.precision == Precision::kFp16;
  const RowSet all_rows{nullptr, args.rows, bounds.max_length};
  if (plan.is_fresh) return LaunchHalfRows(ctx, args, all_rows, true);
  LaunchAppendValues(ctx, args, half);
  if (!half) {
    Scratch scratch(ctx.workspace);
    const RowScratch memory = MakeRowScratch(ctx, scratch, args, shape, pass);
    if (plan.short_rows == AttentionKernel::kExactSplit) {
      return LaunchExactSplit(ctx, args, shape, all_rows, memory.split);
    }
    return LaunchExactRows(ctx, args, all_rows, memory.spill);
  }
  RowSet rows = bounds.short_rows;
  if (!bounds.tiles.host.empty()) {
    if (plan.long_rows == AttentionKernel::kHalfTiles) {
      LaunchHalfTiles(ctx, args, bounds.tiles);
    } else {
      rows = all_rows;
    }
  }
  if (rows.count > 0) LaunchHalfRows(ctx, args, rows, false);
}

}  // namespace stoch::cuda
