// SPDX-License-Identifier: Apache-2.0
// The plain way: a block per row and query head, scores in memory, one product at a time from the table of its length.
#include <algorithm>
#include <string_view>
#include <vector>

#include "kernels/cuda/attention/append.cuh"
#include "kernels/cuda/attention/mixed.h"
#include "kernels/cuda/attention/mixed_row.cuh"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/length_dispatch.h"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {
namespace attention_mixed {
namespace {

constexpr int kAppendWarps = 4;
static_assert(sizeof(ByteTable) == kLengthTableBytes);

struct AppendArgs {
  AttentionArgs attention;
  ScopeParams qk, av;
  uint8_t* q_codes = nullptr;
  float* q_scales = nullptr;
  // Where lengths of q k depend on their row alone, or null: q then stays as it is, and its slots and tables go here.
  ByteTable* q_tables = nullptr;  // [rows][num_heads]
  uint8_t* q_slots = nullptr;
  LengthView qk_lengths;
  uint8_t* wide_codes = nullptr;  // of q as ranks; null: not needed
  const RankTable* qk_ranks = nullptr;
};

// One warp per row and head: RoPE; q in place and as codes, k and v as codes into the cache.
__global__ void __launch_bounds__(kAppendWarps * 32) MixedAppendKernel(const AppendArgs args) {
  __shared__ float squares[kAppendWarps][kRowLanes];
  const AttentionArgs& a = args.attention;
  StartNext();
  WaitForPrevious();
  a.reporter.Begin();
  const int lane = static_cast<int>(threadIdx.x) & 31;
  HeadJob job;
  if (!job.Find(a, static_cast<int>(blockIdx.x) * kAppendWarps + static_cast<int>(threadIdx.x >> 5))) return;
  const int64_t row = job.row;
  const int head = job.head;
  const int head_dim = a.kv.head_dim;
  const int half = head_dim / 2;
  HeadVector<> x;
  job.Load(a, x, lane);
  Extremes e;
  e.max_abs_bits = FloatToBits(WarpMaxAbs(x));
  const ScopeParams& params = job.is_q || job.is_k ? args.qk : args.av;
  const ScopeQuantizer scope(params, e);
  if (lane == 0 && !scope.finite) a.reporter.Report();
  if (job.is_q) {
    const int64_t vector = row * a.num_heads + head;
    if (lane == 0) args.q_scales[vector] = scope.scale;
    RankTable ranks;
    if (args.q_tables != nullptr) {
      const LengthView& view = args.qk_lengths;
      uint8_t slot = 0;
      if (view.has_rule) {
        slot = SlotOfLevel(view, FixedLevel(view, HeadMetric(view, x, half, lane, squares[threadIdx.x >> 5])), 0);
      }
      if (lane == 0) {
        args.q_slots[vector] = slot;
        args.q_tables[vector] = view.bytes[slot];
      }
      if (args.wide_codes != nullptr) ranks = args.qk_ranks[slot];
    }
    float* to = a.q + row * a.q_stride + head * head_dim;
    ForEachDim(x, half, lane, [&](int i, float value) {
      if (args.q_tables == nullptr) to[i] = value;
      const uint8_t code = scope.Code(params, value);
      args.q_codes[vector * head_dim + i] = code;
      if (args.wide_codes == nullptr) return;
      uint32_t rank = code;
      if (ranks.ranks != nullptr) rank = (code & 0x80u) | ranks.Rank(i, code & 0x7fu);
      args.wide_codes[vector * head_dim + i] = static_cast<uint8_t>(rank);
    });
    return;
  }
  const int32_t page =
      a.pass.pages[int64_t{a.pass.row_sequence[row]} * a.pass.max_pages + (job.position >> a.kv.page_shift)];
  StoreCodes(a.kv, job.is_k, page, head, job.position & (a.kv.page_tokens - 1), x, half, lane, scope.scale,
             [&](float value) { return scope.Code(params, value); });
}

// A block per row and head, of q after RoPE.
__global__ void __launch_bounds__(kThreads)
    QueryMetricKernel(const AttentionArgs a, const LengthView view, int32_t first_row, float* metrics) {
  __shared__ float shared[kRowLanes];
  const int64_t row = first_row + static_cast<int32_t>(blockIdx.y);
  const int64_t head = blockIdx.x;
  const float* q = a.q + row * a.q_stride + head * a.kv.head_dim;
  const float metric = BlockMetric(view.metric, view.sign, a.kv.head_dim, shared, [&](int64_t i) { return q[i]; });
  if (threadIdx.x == 0) metrics[row * a.num_heads + head] = metric;
}

__global__ void __launch_bounds__(kThreads) MixedRowKernel(const RowArgs args) {
  __shared__ __align__(16) float shared[kRowLanes];
  __shared__ int32_t sums[kThreads];
  __shared__ uint8_t q[kMaxHeadDim];
  __shared__ AdmittedRow admitted;
  const Row r(args, admitted);
  for (int d = static_cast<int>(threadIdx.x); d < r.kv.head_dim; d += kThreads) {
    q[d] = args.q_codes[r.vector * r.kv.head_dim + d];
  }
  __syncthreads();
  Score(r, q);
  __syncthreads();
  if (!Softmax(r, shared)) {  // nothing is admitted
    if (static_cast<int>(threadIdx.x) < r.kv.head_dim) r.out()[threadIdx.x] = 0.0f;
    return;
  }
  uint8_t slot = 0;
  if (args.av.has_rule && args.phase != Phase::kOutputs) {
    const float metric =
        BlockMetric(args.av.metric, args.av.sign, r.visible, shared, [&](int64_t t) { return r.scores[t]; });
    if (args.phase == Phase::kMetrics) {
      if (threadIdx.x == 0) args.p_metrics[r.vector] = metric;
      return;
    }
    slot = SlotOfLevel(args.av, FixedLevel(args.av, metric), 0);
    if (threadIdx.x == 0) args.p_slots[r.vector] = slot;
  }
  if (args.phase == Phase::kOutputs) slot = args.p_slots[r.vector];
  Output(r, args.av.tables[slot], shared, sums);
}

// Fills slots [rows][heads] call by call from metrics.
void DispatchCalls(DeviceContext& ctx, const LengthView& view, const AttentionArgs& a, const CudaPass& pass,
                   bool recording, const float* metrics, float* extremes, uint8_t* slots) {
  const int64_t heads = a.num_heads;
  const auto dispatch = [&](int64_t first_row, int64_t rows) {
    if (view.scope != ScLengthScope::kFractions) {
      LaunchDispatch(ctx.stream, view, metrics, 1, 1, {first_row * heads, rows * heads, 1}, extremes, slots);
      return;
    }
    for (int64_t head = 0; head < heads; ++head) {  // fractions are of the rows of a head
      LaunchDispatch(ctx.stream, view, metrics, 1, 1, {first_row * heads + head, rows, heads}, extremes, slots);
    }
  };
  if (recording || view.alone()) return dispatch(0, a.rows);
  for (const PassSequence& sequence : pass.sequences()) dispatch(sequence.first_row, sequence.num_rows);
}

// Shows the observer what rows of every head ran at. Waits.
void ShowLengths(DeviceContext& ctx, const AttentionArgs& a, const OpSite& site, const CudaPass& pass,
                 const ScExtras& extras, std::string_view op, const uint8_t* slots) {
  std::vector<uint8_t> host(static_cast<size_t>(a.rows) * static_cast<size_t>(a.num_heads));
  STOCH_CUDA(cudaMemcpyAsync(host.data(), slots, host.size(), cudaMemcpyDeviceToHost, ctx.stream));
  STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
  for (const PassSequence& sequence : pass.sequences()) {
    for (int head = 0; head < a.num_heads; ++head) {
      std::vector<int> lengths;
      for (int32_t i = 0; i < sequence.num_rows; ++i) {
        const uint8_t slot = host[static_cast<size_t>((sequence.first_row + i) * a.num_heads + head)];
        const ScOperatorPtr& one = extras.by_length[slot];
        lengths.push_back(one == nullptr ? 0 : one->config.stoc_len);
      }
      ScLengthRecord record;
      record.site = site;
      record.op = op;
      record.unit = head;
      record.rows = sequence.num_rows;
      record.in_features = op == "qk" ? a.kv.head_dim : sequence.length;
      record.out_features = op == "qk" ? sequence.length : a.kv.head_dim;
      record.chunk = record.in_features;
      record.lengths = lengths;
      record.first_position = sequence.start_position;
      ctx.observer->OnLengths(record);
    }
  }
}

void LaunchAppend(DeviceContext& ctx, const AttentionArgs& args, const MixedProducts& products, AppendArgs append) {
  const LengthView& qk = products.qk.view();
  const LengthView& av = products.av.view();
  append.attention = args;
  append.qk = {qk.code, qk.q_max, qk.scale_floor};
  append.av = {av.code, av.q_max, av.scale_floor};
  append.qk_lengths = qk;
  const int64_t jobs = static_cast<int64_t>(args.rows) * (args.num_heads + 2 * args.kv.num_kv_heads);
  LaunchOverlapped(ctx, &MixedAppendKernel, dim3(static_cast<unsigned>((jobs + kAppendWarps - 1) / kAppendWarps)),
                   dim3(kAppendWarps * 32), 0, append);
}

}  // namespace
}  // namespace attention_mixed

MixedQueries LaunchAppendMixed(DeviceContext& ctx, Scratch& scratch, const AttentionArgs& args,
                               const MixedProducts& products) {
  using namespace attention_mixed;  // NOLINT(google-build-using-namespace): of this file
  const int64_t vectors = static_cast<int64_t>(args.rows) * args.num_heads;
  MixedQueries rows;
  rows.q.words = scratch.Take<uint32_t>(vectors * args.kv.head_dim / 4);
  rows.q.scales = scratch.Take<float>(vectors);
  rows.q_tables = scratch.Take<ByteTable>(vectors);
  rows.q_slots = scratch.Take<uint8_t>(vectors);
  rows.p_slots = scratch.Take<uint8_t>(vectors);
  AppendArgs append;
  if (products.qk_ranks != nullptr && products.av_ranks != nullptr) {
    rows.wide_words = scratch.Take<uint32_t>(vectors * args.kv.head_dim / 4);
    append.wide_codes = reinterpret_cast<uint8_t*>(rows.wide_words);
    append.qk_ranks = products.qk_ranks->tables();
  }
  append.q_codes = reinterpret_cast<uint8_t*>(rows.q.words);
  append.q_scales = rows.q.scales;
  append.q_tables = rows.q_tables;
  append.q_slots = rows.q_slots;
  LaunchAppend(ctx, args, products, append);
  return rows;
}

void ShowMixedLengths(DeviceContext& ctx, const AttentionArgs& args, const OpSite& site, const MixedProducts& products,
                      const CudaPass& pass, const MixedQueries& rows) {
  using namespace attention_mixed;  // NOLINT(google-build-using-namespace): of this file
  if (ctx.observer == nullptr) return;
  if (products.qk.view().has_rule) ShowLengths(ctx, args, site, pass, *products.qk_extras, "qk", rows.q_slots);
  if (products.av.view().has_rule) ShowLengths(ctx, args, site, pass, *products.av_extras, "av", rows.p_slots);
}

void LaunchMixedAttention(DeviceContext& ctx, const AttentionArgs& args, const OpSite& site,
                          const MixedProducts& products, const DilatedPairs& pairs, const CudaPass& pass,
                          bool recording) {
  using namespace attention_mixed;  // NOLINT(google-build-using-namespace): of this file
  const LengthView& qk = products.qk.view();
  const LengthView& av = products.av.view();
  // Sizes by the limits of the pass alone: a recorded graph takes what the pass before it took.
  const PassLimits& limits = pass.limits();
  const int64_t stride = limits.max_pages_per_sequence * args.kv.page_tokens;
  AttentionShape shape;
  shape.num_heads = args.num_heads;
  const int64_t rows_at_once = MixedRowsAtOnce(shape, {limits.max_rows, limits.max_sequences, stride});
  const int64_t vectors = limits.max_rows * args.num_heads;
  Scratch scratch(ctx.workspace);
  auto* const q_codes = scratch.Take<uint8_t>(vectors * args.kv.head_dim);
  auto* const q_scales = scratch.Take<float>(vectors);
  auto* const metrics = scratch.Take<float>(vectors);
  auto* const q_slots = scratch.Take<uint8_t>(vectors);
  auto* const p_slots = scratch.Take<uint8_t>(vectors);
  auto* const extremes = scratch.Take<float>(2);
  auto* const scores = scratch.Take<float>(rows_at_once * args.num_heads * stride);

  AppendArgs append;
  append.q_codes = q_codes;
  append.q_scales = q_scales;
  LaunchAppend(ctx, args, products, append);

  const auto heads = static_cast<unsigned>(args.num_heads);
  const auto for_rows = [&](const auto& launch) {
    for (int64_t first = 0; first < args.rows; first += rows_at_once) {
      launch(static_cast<int32_t>(first), static_cast<unsigned>(std::min(rows_at_once, args.rows - first)));
    }
  };
  RowArgs row_args;
  row_args.attention = args;
  row_args.pairs = pairs;
  row_args.qk = qk;
  row_args.av = av;
  row_args.int_av = products.int_av;
  row_args.q_codes = q_codes;
  row_args.q_scales = q_scales;
  row_args.p_metrics = metrics;
  row_args.p_slots = p_slots;
  row_args.scores = scores;
  row_args.stride = stride;
  if (qk.has_rule) {
    for_rows([&](int32_t first, unsigned rows) {
      QueryMetricKernel<<<dim3(heads, rows), kThreads, 0, ctx.stream>>>(args, qk, first, metrics);
      STOCH_CUDA_LAUNCH("QueryMetricKernel");
    });
    DispatchCalls(ctx, qk, args, pass, recording, metrics, extremes, q_slots);
    row_args.q_slots = q_slots;
  }
  const auto run = [&](Phase phase) {
    row_args.phase = phase;
    for_rows([&](int32_t first, unsigned rows) {
      row_args.first_row = first;
      MixedRowKernel<<<dim3(heads, rows), kThreads, 0, ctx.stream>>>(row_args);
      STOCH_CUDA_LAUNCH("MixedRowKernel");
    });
  };
  if (av.alone()) {
    run(Phase::kWhole);
  } else {
    run(Phase::kMetrics);
    DispatchCalls(ctx, av, args, pass, recording, metrics, extremes, p_slots);
    run(Phase::kOutputs);
  }
  ShowMixedLengths(ctx, args, site, products, pass, {.q_slots = q_slots, .p_slots = p_slots});
}

}  // namespace stoch::cuda
