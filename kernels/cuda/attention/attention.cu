#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/base/error.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/spec_check.h"

namespace stoch::cuda {
namespace {

[[noreturn]] void Reject(const AttentionCall& call, const std::string& problem) {
  throw InvalidInput(std::string(call.site.op) +
                     (call.site.layer >= 0 ? " of layer " + std::to_string(call.site.layer) : "") + ": " + problem);
}

void RequireMatrix(const AttentionCall& call, const char* name, const TensorView& view, const Device& device,
                   int64_t rows, int64_t cols) {
  const bool fits = view.device == device && view.dtype == DType::kF32 && view.rank == 2 && view.rows_dense() &&
                    view.dim(0) >= rows && (rows == 0 || view.dim(0) == rows) && view.dim(1) == cols &&
                    view.data != nullptr;
  if (fits) return;
  Reject(call, std::string(name) + " is " + Describe(view) + ", expected F32[" +
                   (rows == 0 ? "any" : std::to_string(rows)) + ", " + std::to_string(cols) + "] with dense rows on " +
                   DeviceName(device));
}

void CheckSequences(const AttentionCall& call, const KvCacheSpec& spec, const CudaPass& pass) {
  for (const PassSequence& sequence : pass.sequences()) {
    if (sequence.length > call.rope.dim(0)) {
      Reject(call, "a sequence ends at position " + std::to_string(sequence.length) + ", the rope table has " +
                       std::to_string(call.rope.dim(0)));
    }
    if (sequence.length > sequence.num_pages * spec.page_tokens) {
      Reject(call, "a sequence ends at position " + std::to_string(sequence.length) + ", its pages hold " +
                       std::to_string(sequence.num_pages * spec.page_tokens));
    }
    if (spec.mode != AttentionMode::kExact) CheckAccumulator(*spec.av, sequence.length, call.site.op);
  }
  if (pass.max_page() >= spec.num_pages) {
    Reject(call, "page " + std::to_string(pass.max_page()) + ", expected below " + std::to_string(spec.num_pages));
  }
}

AttentionArgs Check(DeviceContext& ctx, const AttentionCall& call, const CudaKvCache& cache, const CudaPass& pass) {
  const KvCacheSpec& spec = cache.spec();
  if (cache.device() != ctx.device || pass.device() != ctx.device) {
    Reject(call, "cache is on " + DeviceName(cache.device()) + ", pass on " + DeviceName(pass.device()) +
                     ", expected " + DeviceName(ctx.device));
  }
  if (call.num_heads < 1 || call.num_heads % spec.num_kv_heads != 0) {
    Reject(call,
           std::to_string(call.num_heads) + " heads, expected a multiple of " + std::to_string(spec.num_kv_heads));
  }
  if (call.cache_layer < 0 || call.cache_layer >= spec.num_layers) {
    Reject(call,
           "cache layer " + std::to_string(call.cache_layer) + ", expected below " + std::to_string(spec.num_layers));
  }
  const int64_t rows = pass.rows();
  const int64_t q_cols = static_cast<int64_t>(call.num_heads) * spec.head_dim;
  const int64_t kv_cols = static_cast<int64_t>(spec.num_kv_heads) * spec.head_dim;
  RequireMatrix(call, "q", call.q, ctx.device, rows, q_cols);
  RequireMatrix(call, "k", call.k, ctx.device, rows, kv_cols);
  RequireMatrix(call, "v", call.v, ctx.device, rows, kv_cols);
  RequireMatrix(call, "out", call.out, ctx.device, rows, q_cols);
  RequireMatrix(call, "rope", call.rope, ctx.device, 0, spec.head_dim);
  for (const TensorView* in : {&call.q, &call.k, &call.v}) {
    if (MayOverlap(call.out, *in)) Reject(call, "the output overlaps an input");
  }
  CheckSequences(call, spec, pass);

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
  args.rows = static_cast<int32_t>(rows);
  args.num_heads = call.num_heads;
  args.group = call.num_heads / spec.num_kv_heads;
  args.inv_sqrt = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  args.finite = ctx.Reporter(call.site);
  return args;
}

// As MakeAttentionShape, with the operators' traits that are kept with their tables.
AttentionShape ShapeOf(DeviceContext& ctx, const KvCacheSpec& spec, int num_heads) {
  AttentionShape shape;
  shape.mode = spec.mode;
  shape.precision = spec.precision;
  shape.num_heads = num_heads;
  shape.num_kv_heads = spec.num_kv_heads;
  shape.head_dim = spec.head_dim;
  if (spec.mode != AttentionMode::kExact) {
    shape.qk = ctx.tables.Traits(*spec.qk);
    shape.av = ctx.tables.Traits(*spec.av);
  }
  return shape;
}

bool IsRecording(DeviceContext& ctx) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  STOCH_CUDA(cudaStreamIsCapturing(ctx.stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

// What the host may assume of the pass: of the one just uploaded, or, while a graph is recorded, of every pass within
// the limits.
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
    bounds.max_length = static_cast<int32_t>(pass.limits().max_pages_per_sequence * spec.page_tokens);
    bounds.short_rows = {nullptr, static_cast<int32_t>(pass.rows()), bounds.max_length};
    return bounds;
  }
  bounds.max_length = pass.max_length();
  bounds.short_rows = {pass.view().short_rows, static_cast<int32_t>(pass.num_short_rows()), pass.max_short_length()};
  bounds.tiles = {pass.view().tiles, pass.tiles(), pass.batches()};
  return bounds;
}

// Requires: a scope of its own, opened after tiles are done with theirs.
ScoreSpill MakeSpill(Scratch& scratch, const AttentionArgs& args, const AttentionShape& shape, const CudaPass& pass) {
  const SpillPlan plan = PlanSpill(shape, args.rows, pass.limits().max_pages_per_sequence * args.kv.page_tokens);
  ScoreSpill spill;
  spill.rows_at_once = static_cast<int32_t>(plan.rows_at_once);
  if (plan.stride == 0) return spill;
  spill.stride = plan.stride;
  spill.scores = scratch.Take<float>(spill.stride * args.num_heads * spill.rows_at_once);
  return spill;
}

void RunScRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const ScTables& qk,
               const ScTables& av, const QueryCodes& q, const WindowScales& window, const RowSet& rows,
               const CudaPass& pass) {
  Scratch scratch(ctx.workspace);
  const ScoreSpill spill = MakeSpill(scratch, args, shape, pass);
  // Memory that a graph recorded later needs is taken now, even by a pass without such rows.
  if (rows.count > 0) LaunchScRows(ctx, args, shape, qk, av, q, window, rows, spill);
}

void LaunchSc(DeviceContext& ctx, const AttentionArgs& args, const KvCacheSpec& spec, const AttentionShape& shape,
              const AttentionPlan& plan, const Bounds& bounds, const CudaPass& pass) {
  const ScTables& qk = ctx.tables.Get(*spec.qk);
  const ScTables& av = ctx.tables.Get(*spec.av);
  const RowSet all_rows{nullptr, args.rows, bounds.max_length};
  QueryCodes q;
  if (plan.is_fresh) return RunScRows(ctx, args, shape, qk, av, q, {}, all_rows, pass);
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
    if (plan.long_rows == AttentionKernel::kScTiles) {
      LaunchScTiles(ctx, args, shape, qk, av, q, window, bounds.tiles);
    } else {
      rows = all_rows;
    }
  }
  RunScRows(ctx, args, shape, qk, av, q, window, rows, pass);
}

}  // namespace

void LaunchAttention(DeviceContext& ctx, const AttentionCall& call) {
  if (call.cache == nullptr || call.pass == nullptr) Reject(call, "needs a cache and a pass");
  const auto& cache = static_cast<const CudaKvCache&>(*call.cache);
  const auto& pass = static_cast<const CudaPass&>(*call.pass);
  const AttentionArgs args = Check(ctx, call, cache, pass);
  const KvCacheSpec& spec = cache.spec();
  const bool recording = IsRecording(ctx);
  const Bounds bounds = MakeBounds(pass, spec, recording);
  const AttentionShape shape = ShapeOf(ctx, spec, call.num_heads);
  const AttentionPlan plan = PlanAttention(ctx.traits, shape, args.rows, recording);
  if (spec.mode != AttentionMode::kExact) return LaunchSc(ctx, args, spec, shape, plan, bounds, pass);
  const bool half = spec.precision == Precision::kFp16;
  const RowSet all_rows{nullptr, args.rows, bounds.max_length};
  if (plan.is_fresh) return LaunchHalfRows(ctx, args, all_rows, true);
  LaunchAppendValues(ctx, args, half);
  if (!half) {
    Scratch scratch(ctx.workspace);
    return LaunchExactRows(ctx, args, all_rows, MakeSpill(scratch, args, shape, pass));
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
