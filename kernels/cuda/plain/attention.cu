// SPDX-License-Identifier: Apache-2.0
// Attention of any setting in mode kPerToken: a block per row and query head, scores in device memory, and one product
// after the other looked up in the count table of its stream length.
#include <algorithm>

#include "kernels/cuda/attention/mixed.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/plain/attention_append.h"
#include "kernels/cuda/plain/attention_row.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/plan/attention/ring.h"

namespace stoch::cuda {
namespace plain_attention {
namespace {

// Computes the attention output of one row and query head, or in Phase::kMetrics only the metric of its probabilities.
// One block per (query head, row). kHardware: the product may have faults, adders made of gates or narrow registers.
template <bool kHardware>
__global__ void __launch_bounds__(kThreads, kHardware ? 2 : 4) PlainRowKernel(const __grid_constant__ RowArgs args) {
  __shared__ __align__(16) float shared[kRowLanes];
  __shared__ int32_t sums[kThreads];
  __shared__ __align__(4) uint8_t q[kMaxHeadDim];
  __shared__ __align__(16) float near[kNearScores];
  __shared__ AdmittedRow admitted;
  StartNext();
  WaitForPrevious();
  const Row r(args, admitted, near);
  for (int d = static_cast<int>(threadIdx.x); d < r.kv.head_dim; d += kThreads) {
    q[d] = args.q_codes[r.vector * r.kv.head_dim + d];
  }
  __syncthreads();
  Score<kHardware>(r, q);
  __syncthreads();
  if (!Softmax(r, shared)) {  // no position is admitted (dilated attention)
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
  Output<kHardware>(r, args.av.tables[slot], shared, sums);
}

// Takes room for the scores of as many rows as `limits` give scratch for, and calls launch(kernel arguments, rows) for
// one batch of rows after the other. Dilated rows have scores from their longest segment on, so more of them fit.
class RowBatches {
 public:
  RowBatches(Scratch& scratch, const AttentionArgs& args, const AttentionLimits& limits, const DilatedPairs& pairs) {
    AttentionShape shape;
    shape.num_heads = args.num_heads;
    at_once_ = MixedRowsAtOnce(shape, limits);
    stride_ = limits.max_context;
    scores_ = scratch.Take<float>(at_once_ * args.num_heads * stride_);
    const int64_t span = (LongestSegment(pairs) / kRowLanes + 2) * kRowLanes;
    if (pairs.count == 0 || span >= stride_) return;
    at_once_ = std::min<int64_t>(at_once_ * stride_ / span, kGridRows);
    stride_ = span;
  }
  template <typename Launch>
  void ForEach(RowArgs args, const Launch& launch) const {
    args.scores = scores_;
    args.stride = stride_;
    for (int64_t first = 0; first < args.attention.rows; first += at_once_) {
      args.first_row = static_cast<int32_t>(first);
      launch(args, static_cast<unsigned>(std::min(at_once_, args.attention.rows - first)));
    }
  }

 private:
  static constexpr int64_t kGridRows = 32768;  // gridDim is limited to 65535
  int64_t at_once_, stride_;
  float* scores_;
};

}  // namespace
}  // namespace plain_attention

void LaunchPlainAttention(DeviceContext& ctx, const AttentionArgs& args, const AttentionCall& call,
                          const MixedProducts& products, const DilatedPairs& pairs, const CudaPass& pass) {
  using namespace plain_attention;  // NOLINT(google-build-using-namespace): of this file
  const LengthView& qk = products.qk.view();
  const LengthView& av = products.av.view();
  // Sizes depend on the limits of the pass alone, so that a recorded graph takes the same scratch as the eager pass
  // before it.
  const KvCacheSpec& spec = call.cache->spec();
  const AttentionLimits limits = args.k == nullptr ? RingAttentionLimits(spec, pass.limits(), args.kv.num_kv_heads)
                                                   : MakeAttentionLimits(spec, pass.limits());
  const int64_t vectors = limits.max_rows * args.num_heads;
  Scratch scratch(ctx.workspace);
  auto* const q_codes = scratch.Take<uint8_t>(vectors * args.kv.head_dim);
  auto* const q_scales = scratch.Take<float>(vectors * args.kv.key_scales);
  auto* const metrics = scratch.Take<float>(vectors);
  auto* const q_slots = scratch.Take<uint8_t>(vectors);
  auto* const p_slots = scratch.Take<uint8_t>(vectors);
  auto* const extremes = scratch.Take<float>(2);
  const RowBatches batches(scratch, args, limits, pairs);

  LaunchAppend(ctx, args, call, products, {.codes = q_codes, .scales = q_scales});

  RowArgs row_args;
  row_args.attention = args;
  row_args.pairs = pairs;
  row_args.qk = qk;
  row_args.av = av;
  row_args.int_av = products.int_av;
  if (products.qk_hardware != nullptr) row_args.qk_hardware = products.qk_hardware->view();
  if (products.av_hardware != nullptr) row_args.av_hardware = products.av_hardware->view();
  row_args.qk_site = SiteNumber(call, kQkOperator, call.first_head);
  row_args.av_site = SiteNumber(call, kAvOperator, call.first_head);
  row_args.exp = ctx.tables.Function(call.exp_table);
  row_args.q_codes = q_codes;
  row_args.q_scales = q_scales;
  row_args.p_metrics = metrics;
  row_args.p_slots = p_slots;
  if (qk.has_rule) {
    LaunchQueryMetrics(ctx, args, qk, metrics);
    DispatchCalls(ctx, qk, args, pass, ctx.IsRecording(), metrics, extremes, q_slots);
    row_args.q_slots = q_slots;
  }
  const bool is_ideal = products.qk_hardware == nullptr && products.av_hardware == nullptr;
  const auto row_kernel = is_ideal ? PlainRowKernel<false> : PlainRowKernel<true>;
  const auto run = [&](Phase phase) {
    row_args.phase = phase;
    batches.ForEach(row_args, [&](const RowArgs& batch, unsigned rows) {
      const dim3 grid(static_cast<unsigned>(args.num_heads), rows);
      LaunchOverlapped(ctx, row_kernel, grid, dim3(kThreads), 0, batch);
    });
  };
  if (av.alone()) {
    run(Phase::kWhole);
  } else {
    run(Phase::kMetrics);
    DispatchCalls(ctx, av, args, pass, ctx.IsRecording(), metrics, extremes, p_slots);
    run(Phase::kOutputs);
  }
  ShowMixedLengths(ctx, args, call.site, products, pass, {.q_slots = q_slots, .p_slots = p_slots});
}

}  // namespace stoch::cuda
