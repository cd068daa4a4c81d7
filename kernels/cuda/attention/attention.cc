// SPDX-License-Identifier: Apache-2.0
// The attention op: RoPE, the append to the KV cache and causal attention in every mode, by the routes of a plan
// (kernels/plan/attention/plan.h).
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/base/check.h"
#include "kernels/call_check.h"
#include "kernels/context_bucket.h"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/mixed.h"
#include "kernels/cuda/attention/shape.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/ops.h"
#include "kernels/family_check.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {
namespace {

void Check(const AttentionCall& call, const CudaPass& pass) {
  CheckAttention(call, pass.rows());
  for (const PassSequence& sequence : pass.sequences()) {
    CheckAttentionSequence(call, sequence.length, sequence.num_pages);
  }
  if (pass.max_page() > 0) CheckAttentionPage(call, pass.max_page());
}

int64_t OutputsOf(const AttentionArgs& args) { return int64_t{args.num_heads} * args.kv.head_dim; }

// Returns the facts of the pass for PlanAttention. While a graph is recorded, these are bounds for every pass that the
// graph may be replayed for (all passes of one ContextBucket).
AttentionPass PassOf(const DeviceContext& ctx, const AttentionCall& call, const CudaPass& pass, int64_t max_context) {
  const bool recording = ctx.IsRecording();
  const int64_t length = recording ? LongestOfBucket(ContextBucket(pass.max_length()), max_context) : pass.max_length();
  AttentionPass facts =
      AttentionPass::Rows(pass.rows(), length, recording ? AttentionUse::kRecorded : AttentionUse::kEager);
  if (!recording) {
    facts.short_rows = pass.num_short_rows();
    facts.max_short_length = pass.max_short_length();
    for (const TileBatch& batch : pass.batches()) {
      facts.batch_sequences = std::max<int64_t>(facts.batch_sequences, batch.num_sequences);
    }
  }
  if (call.only_outputs) facts.output_rows = pass.num_output_rows();
  facts.window = call.window;
  facts.dilated = !call.dilated.empty();
  facts.has_norm = call.norm != nullptr;
  facts.has_norm_table = facts.has_norm && call.norm->table != nullptr;
  facts.observed = ctx.observer != nullptr;
  return facts;
}

// A checked attention call, with its kernel arguments, its plan and the rows that each route takes.
struct Job {
  DeviceContext& ctx;
  const AttentionCall& call;
  const CudaKvCache& cache;
  const CudaPass& pass;
  AttentionArgs args = {};
  AttentionShape shape = {};
  AttentionPlan plan = {};
  AttendedRows rows = {};
  int32_t longest = 0;  // positions of the longest context of the pass, or of any pass that a recorded graph serves

  const MixedProducts& mixed() const { return *cache.mixed(call.cache_layer); }
  const RowSet& short_rows() const { return plan.long_rows != plan.short_rows ? rows.short_rows : rows.all; }
};

AttendedRows RowsOf(const CudaPass& pass, const AttentionPlan& plan) {
  AttendedRows rows;
  const RowSet planned{nullptr, static_cast<int32_t>(plan.count), static_cast<int32_t>(plan.max_length)};
  rows.all = rows.short_rows = planned;
  if (plan.attended == AttentionRows::kOutputs) rows.all.list = pass.view().output_rows;
  if (plan.long_rows == plan.short_rows) return rows;
  rows.short_rows.list = pass.view().short_rows;
  rows.tiles = {pass.view().tiles, pass.tiles(), pass.batches()};
  return rows;
}

Job MakeJob(DeviceContext& ctx, const AttentionCall& call) {
  Job job{ctx, call, static_cast<const CudaKvCache&>(*call.cache), static_cast<const CudaPass&>(*call.pass)};
  Check(call, job.pass);
  const KvCacheSpec& spec = job.cache.spec();
  job.args = ArgsOf(ctx, call, job.cache, job.pass.view());
  job.shape = ShapeOf(job.cache, call.cache_layer, call.num_heads, spec.num_kv_heads);
  const AttentionLimits limits = MakeAttentionLimits(spec, job.pass.limits());
  const AttentionPass pass = PassOf(ctx, call, job.pass, limits.max_context);
  job.plan = PlanAttention(ctx.traits, job.shape, limits, pass);
  job.longest = static_cast<int32_t>(pass.max_length);
  job.rows = RowsOf(job.pass, job.plan);
  return job;
}

// Arranges the RMSNorm of q and k heads before RoPE. If the row kernel applies it, returns the weights; otherwise
// launches a kernel for the norm, if the call has one, and returns null pointers.
HeadNorm NormHeads(const Job& job) {
  switch (job.plan.norm) {
    case AttentionNorm::kNobody: break;
    case AttentionNorm::kRowKernel:
      CheckNormHeads(*job.call.norm);
      return {job.call.norm->q_weight.ptr<const float>(), job.call.norm->k_weight.ptr<const float>(),
              job.call.norm->eps};
    case AttentionNorm::kOwnKernel:
      LaunchNormHeads(job.ctx, *job.call.norm);
      // The norm ran as an op of its own, so q and k are no longer the words that the previous kernel posted.
      job.ctx.row_channel().Begin(false);
      break;
  }
  return {};
}

ScOperands OperandsOf(const Job& job) {
  ScOperands operands;
  operands.qk = job.ctx.tables.Get(job.cache.qk(job.call.cache_layer));
  operands.av = job.ctx.tables.Get(job.cache.av(job.call.cache_layer));
  return operands;
}

QueryCodes TakeQueryCodes(const Job& job, Scratch& scratch) {
  const int64_t vectors = int64_t{job.args.rows} * job.args.num_heads;
  return {scratch.Take<uint32_t>(vectors * job.args.kv.head_dim / 4), scratch.Take<float>(vectors)};
}

// Modes kPerHead and kPerRow: appends the rows to the cache as floats, then quantizes the whole window of every
// sequence.
WindowScales QuantizeWindow(const Job& job, Scratch& scratch, const ScOperands& operands) {
  const auto sequences =
      // The limit, not the number in this pass: a recorded graph must take the same scratch.
      static_cast<int32_t>(job.pass.limits().max_sequences);
  const int64_t heads = int64_t{sequences} * job.args.num_heads;
  WindowScales window;
  window.v_channels = scratch.Take<float>(int64_t{sequences} * job.shape.num_kv_heads * job.shape.head_dim);
  window.p_heads = scratch.Take<float>(heads);
  STOCH_CUDA(cudaMemsetAsync(window.p_heads, 0, static_cast<size_t>(heads) * sizeof(float), job.ctx.stream));
  LaunchAppendValues(job.ctx, job.args, false);
  LaunchQuantizeWindow(job.ctx, job.args, job.shape.mode, sequences, job.longest, operands.qk.q_max, operands.av.q_max,
                       operands.q, window);
  return window;
}

// Returns the words of q, k and v of a one-row pass if the plan polls them and the previous kernels post all three, q
// as a row that no other GPU shares; else posted.q is null.
PostedHeads PollHeads(const Job& job) {
  if (job.plan.handover != Handover::kWords) return {};
  const RowChannel& rows = job.ctx.row_channel();
  const int64_t kv_count = int64_t{job.args.kv.num_kv_heads} * job.args.kv.head_dim;
  const PolledRow q = rows.Poll(job.args.q, OutputsOf(job.args));
  const PolledRow k = rows.Poll(job.args.k, kv_count);
  const PolledRow v = rows.Poll(job.args.v, kv_count);
  PostedHeads posted;
  if (!q || !k || !v || q.is_shared_row) return posted;
  posted.q = q.words;
  posted.k = k.words;
  posted.v = v.words;
  return posted;
}

void RunSc(const Job& job, const HeadNorm& norm) {
  ScOperands operands = OperandsOf(job);
  operands.norm = norm;
  const PostedHeads posted = PollHeads(job);
  RowOutputs outputs;
  if (posted.q != nullptr) {
    outputs.words = OutputsOf(job.args);
    outputs.can_share = true;
    outputs.Add({job.args.out, outputs.words, 0});
  }
  job.ctx.row_channel().Post(outputs, job.ctx.posts_rows, {}, [&](const RowPost& post, const PostPeers& peers) {
    Scratch scratch(job.ctx.workspace);
    if (post) {
      operands.posted = posted;
      operands.posted.out = post;
      operands.peers = peers;
    } else if (!AppendsItself(job.plan.short_rows)) {
      operands.q = TakeQueryCodes(job, scratch);
      if (job.shape.mode != AttentionMode::kPerToken) {
        operands.window = QuantizeWindow(job, scratch, operands);
      } else {
        LaunchAppendCodes(job.ctx, job.args, operands.qk.q_max, operands.av.q_max, operands.q);
      }
    }
    AttendCodes(job.ctx, job.args, job.shape, job.plan, operands, job.rows);
  });
}

// Runs a pass of one row with mixed lengths: the row kernel also quantizes the row and appends it to the cache.
void RunMixedFresh(const Job& job) {
  Scratch scratch(job.ctx.workspace);
  const RowScratch memory = MakeRowScratch(job.ctx, scratch, job.args, job.shape, job.plan.spill);
  const MixedProducts& products = job.mixed();
  LaunchMixedRows(job.ctx, job.args, job.shape, job.plan.short_rows, OperandsOf(job),
                  {nullptr, products.qk.view(), products.av.view(), nullptr}, job.rows.all, memory.spill);
}

void LaunchMixedTiles(const Job& job, const MixedQueries& mixed) {
  const MixedProducts& products = job.mixed();
  ScOperands operands;
  operands.qk = job.ctx.tables.Get(products.qk_ranks->longest());
  operands.av = job.ctx.tables.Get(products.av_ranks->longest());
  operands.q = {mixed.wide_words, mixed.q.scales};
  AttentionArgs args = job.args;
  args.kv.qk_swapped = products.qk_ranks->swapped();
  args.kv.av_swapped = products.av_ranks->swapped();
  const WideLengths lengths{products.qk_ranks->tables(), mixed.q_slots, products.av_ranks->tables(), products.av.view(),
                            mixed.p_slots};
  for (const TileBatch& batch : job.rows.tiles.batches) {
    LaunchMixedWide(job.ctx, args, LongestShape(job.shape), *job.plan.wide, operands, lengths, job.rows.tiles, batch);
  }
}

void RunMixedRows(const Job& job) {
  const MixedProducts& products = job.mixed();
  Scratch scratch(job.ctx.workspace);
  const MixedQueries mixed = LaunchAppendMixed(job.ctx, scratch, job.args, products);
  if (job.plan.long_rows == AttentionRoute::kMixedWide) LaunchMixedTiles(job, mixed);
  Scratch of_rows(job.ctx.workspace);
  const RowScratch memory = MakeRowScratch(job.ctx, of_rows, job.args, job.shape, job.plan.spill);
  ScOperands operands = OperandsOf(job);
  operands.q = mixed.q;
  LaunchMixedRows(job.ctx, job.args, job.shape, job.plan.short_rows, operands,
                  {mixed.q_tables, products.qk.view(), products.av.view(), mixed.p_slots}, job.short_rows(),
                  memory.spill);
  ShowMixedLengths(job.ctx, job.args, job.call.site, products, job.pass, mixed);
}

// Runs attention without SC: in fp32, or with halves in the cache as the fp16 baseline.
void RunValues(const Job& job) {
  LaunchAppendValues(job.ctx, job.args, job.shape.precision == Precision::kFp16);
  if (job.plan.long_rows == AttentionRoute::kHalfTiles) LaunchHalfTiles(job.ctx, job.args, job.rows.tiles);
  AttendValues(job.ctx, job.args, job.shape, job.plan, job.short_rows(), job.ctx.tables.Function(job.call.exp_table));
}

}  // namespace

AttentionShape ShapeOf(const CudaKvCache& cache, int layer, int num_heads, int num_kv_heads) {
  AttentionShape shape = cache.shape(layer);
  shape.num_heads = num_heads;
  shape.num_kv_heads = num_kv_heads;
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
  args.score_cap = call.score_cap;
  args.inv_sqrt = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  args.reporter = ctx.Reporter(call.site);
  return args;
}

RowScratch MakeRowScratch(DeviceContext& ctx, Scratch& scratch, const AttentionArgs& args, const AttentionShape& shape,
                          const SpillPlan& plan) {
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

void AttendCodes(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const AttentionPlan& plan,
                 const ScOperands& operands, const AttendedRows& attended) {
  const bool has_tiles = plan.long_rows != plan.short_rows;
  if (has_tiles) {
    for (const TileBatch& batch : attended.tiles.batches) {
      if (BatchRoute(plan, batch.num_sequences) == AttentionRoute::kScWide) {
        LaunchScWide(ctx, args, shape, *plan.wide, operands, attended.tiles, batch);
      } else {
        LaunchScTiles(ctx, args, shape, *plan.tiles, operands, attended.tiles, batch);
      }
    }
  }
  // Taken after the tiles have given their scratch back. A pass without short rows takes the memory too, since a graph
  // that is recorded later must find it.
  Scratch scratch(ctx.workspace);
  const RowScratch memory = MakeRowScratch(ctx, scratch, args, shape, plan.spill);
  const RowSet& rows = has_tiles ? attended.short_rows : attended.all;
  if (rows.count == 0) return;
  switch (plan.short_rows) {
    case AttentionRoute::kScLookup:
    case AttentionRoute::kScResident:
    case AttentionRoute::kScSplit: return LaunchScSplit(ctx, args, plan.split, operands, rows, memory.split);
    case AttentionRoute::kScFreshRows:
    case AttentionRoute::kScRows:
    case AttentionRoute::kScWindowRows:
      return LaunchScRows(ctx, args, shape, plan.short_rows, operands, rows, memory.spill);
    case AttentionRoute::kMixedFresh:
    case AttentionRoute::kMixedRows:
    case AttentionRoute::kPlainRows:
    case AttentionRoute::kPlainWindow:
    case AttentionRoute::kDealtSplit:
    case AttentionRoute::kDealtRows:
    case AttentionRoute::kScTiles:
    case AttentionRoute::kScWide:
    case AttentionRoute::kMixedWide:
    case AttentionRoute::kExactRows:
    case AttentionRoute::kExactSplit:
    // No plan for SC with one length per product has one of these routes as short_rows.
    case AttentionRoute::kHalfTiles: break;
  }
  STOCH_CHECK(false);
}

void AttendValues(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const AttentionPlan& plan,
                  const RowSet& rows, const NonlinearView& exp) {
  Scratch scratch(ctx.workspace);
  const RowScratch memory = MakeRowScratch(ctx, scratch, args, shape, plan.spill);
  if (rows.count == 0) return;
  if (plan.short_rows == AttentionRoute::kExactSplit) {
    return LaunchExactSplit(ctx, args, plan.split, rows, memory.split);
  }
  LaunchExactRows(ctx, args, rows, memory.spill, exp);
}

void LaunchAttention(DeviceContext& ctx, const AttentionCall& call) {
  CheckAttentionHandles(call);
  const Job job = MakeJob(ctx, call);
  ctx.posts_rows = false;
  const HeadNorm norm = NormHeads(job);
  ctx.posts_rows = job.plan.handover == Handover::kWords;
  switch (job.plan.short_rows) {
    case AttentionRoute::kScFreshRows:
    case AttentionRoute::kScRows:
    case AttentionRoute::kScWindowRows:
    case AttentionRoute::kScLookup:
    case AttentionRoute::kScResident:
    case AttentionRoute::kScSplit: return RunSc(job, norm);
    case AttentionRoute::kMixedFresh: return RunMixedFresh(job);
    case AttentionRoute::kMixedRows: return RunMixedRows(job);
    case AttentionRoute::kPlainWindow:
      return LaunchPlainWindow(ctx, job.args, call, job.mixed(), job.cache.qk(call.cache_layer),
                               job.cache.av(call.cache_layer), job.pass);
    case AttentionRoute::kPlainRows:
      return LaunchPlainAttention(ctx, job.args, call, job.mixed(), MakeDilatedPairs(call.dilated, call.first_head),
                                  job.pass);
    case AttentionRoute::kExactRows:
    case AttentionRoute::kExactSplit: return RunValues(job);
    case AttentionRoute::kDealtSplit:
    case AttentionRoute::kDealtRows:
    case AttentionRoute::kScTiles:
    case AttentionRoute::kScWide:
    case AttentionRoute::kMixedWide:
    // No plan of this op has one of these routes as short_rows.
    case AttentionRoute::kHalfTiles: break;
  }
  STOCH_CHECK(false);
}

}  // namespace stoch::cuda
