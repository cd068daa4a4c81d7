// SPDX-License-Identifier: Apache-2.0
// Attention in the modes per_head and per_row with any lengths, tables, integers and factors of q and k: one head of a
// sequence at a time, q k^T and p v as plain products over the whole window, that is all positions
// (docs/sc_arithmetic.md#6-in-the-model).
#include "kernels/cuda/attention/mixed.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/block_softmax.cuh"
#include "kernels/cuda/device/length_dispatch.h"
#include "kernels/cuda/device/lengths.cuh"
#include "kernels/cuda/plain/attention_append.h"
#include "kernels/cuda/plain/operands.h"
#include "kernels/cuda/plain/product.h"
#include "kernels/cuda/runtime/for_each.cuh"
#include "kernels/math/gated.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;

// Copies one KV head of a sequence from the cache: keys to k [positions][head_dim], values to v [head_dim][positions].
// A functor for LaunchForEach over positions * head_dim elements.
struct WindowGatherer {
  KvView kv;
  const int32_t* pages = nullptr;
  int64_t positions = 0;
  int kv_head = 0;
  float* k = nullptr;
  float* v = nullptr;

  __device__ void operator()(int64_t i) const {
    const int64_t t = i / kv.head_dim;
    const int64_t d = i % kv.head_dim;
    const int slot = static_cast<int>(t) & (kv.page_tokens - 1);
    const int64_t at = kv.Value(pages[t >> kv.page_shift], kv_head, slot) + d;
    k[i] = kv.k[at];
    v[d * positions + t] = kv.v[at];
  }
};

// Arguments of WindowSoftmaxKernel, for one head of a sequence.
struct SoftmaxArgs {
  float* scores = nullptr;  // [rows][positions]: scores of q k^T without the factor inv_sqrt, replaced by probabilities
  int64_t positions = 0;
  int64_t start = 0;   // position of row 0
  int32_t window = 0;  // sliding window in positions (AttentionCall::window); 0: none
  float inv_sqrt = 0;
  float score_cap = 0;  // soft cap of scores (AttentionCall::score_cap); 0: none
  // The rule that picks the stream length of p v.
  LengthView av;
  // Metrics of the rows of probabilities, by which the rule picks lengths; element row * step.
  float* metrics = nullptr;
  // Slots (indices of stream lengths) of the rows, element row * step; null: lengths depend on other rows too, so the
  // caller picks them later.
  uint8_t* slots = nullptr;
  int64_t step = 1;
  SiteReporter reporter;
  NonlinearView exp;  // function table that replaces Exp; if its size is 0, Exp itself is used
};

// Turns the scores of a row into probabilities, 0 at positions that the row does not see, and computes the row's metric
// and slot. One block per row.
__global__ void __launch_bounds__(kThreads) WindowSoftmaxKernel(const __grid_constant__ SoftmaxArgs args) {
  __shared__ __align__(16) float shared[kRowLanes];
  const int64_t row = blockIdx.x;
  float* p = args.scores + row * args.positions;
  const int64_t visible = args.start + row + 1;
  const int64_t first = args.window > 0 && visible > args.window ? visible - args.window : 0;
  for (int64_t t = threadIdx.x; t < visible; t += kThreads) {
    p[t] = t < first ? BitsToFloat(0xff800000u) : p[t] * args.inv_sqrt;
    if (args.score_cap > 0.0f && t >= first) p[t] = SoftCap(p[t], args.score_cap);
  }
  const float largest = BlockLargest(p, int64_t{0}, visible, shared);
  const float sum = BlockSoftmax(p, int64_t{0}, visible, largest, shared,
                                 [&](int64_t, float x) { return args.exp.size > 0 ? args.exp.ExpAt(x) : Exp(x); });
  if (threadIdx.x == 0 && !IsFinite(sum)) args.reporter.Report();
  for (int64_t t = visible + threadIdx.x; t < args.positions; t += kThreads) p[t] = 0.0f;
  if (!args.av.has_rule) return;
  __syncthreads();
  const float metric = BlockMetric(args.av.metric, args.av.sign, visible, shared, [&](int64_t t) { return p[t]; });
  if (threadIdx.x != 0) return;
  args.metrics[row * args.step] = metric;
  if (args.slots != nullptr) args.slots[row * args.step] = SlotOfLevel(args.av, FixedLevel(args.av, metric), 0);
}

// Runs attention for one pass. Owns the scratch that the steps share.
class WindowPass {
 public:
  WindowPass(DeviceContext& ctx, const AttentionArgs& args, const MixedProducts& products, const ScOperator& qk,
             const ScOperator& av, const CudaPass& pass)
      : ctx_(ctx), a_(args), products_(products), qk_(qk), av_(av), pass_(pass), scratch_(ctx.workspace) {
    const PassLimits& limits = pass.limits();
    const int64_t context = limits.max_pages_per_sequence * args.kv.page_tokens;
    const int64_t vectors = limits.max_rows * args.num_heads;
    q_ = scratch_.Take<float>(vectors * args.kv.head_dim);
    metrics_ = scratch_.Take<float>(vectors);
    q_slots_ = scratch_.Take<uint8_t>(vectors);
    p_slots_ = scratch_.Take<uint8_t>(vectors);
    extremes_ = scratch_.Take<float>(2);
    k_ = scratch_.Take<float>(context * args.kv.head_dim);
    v_ = scratch_.Take<float>(context * args.kv.head_dim);
    scores_ = scratch_.Take<float>(limits.max_rows * context);
  }

  // Appends keys and values to the cache, picks the stream lengths of queries, then runs attention one sequence at a
  // time.
  void Run(const AttentionCall& call) {
    exp_ = ctx_.tables.Function(call.exp_table);
    plain_attention::LaunchAppend(ctx_, a_, call, products_, {.q_values = q_});
    if (products_.qk.view().has_rule) {
      plain_attention::LaunchQueryMetrics(ctx_, a_, products_.qk.view(), metrics_);
      plain_attention::DispatchCalls(ctx_, products_.qk.view(), a_, pass_, false, metrics_, extremes_, q_slots_);
    }
    for (size_t i = 0; i < pass_.sequences().size(); ++i) {
      const PassSequence& sequence = pass_.sequences()[i];
      if (products_.av.view().alone()) {
        RunHeads(sequence, i, true);
        continue;
      }
      RunHeads(sequence, i, false);  // the rule needs the metrics of all heads before it picks the first length
      plain_attention::DispatchSequence(ctx_, products_.av.view(), a_, sequence, metrics_, extremes_, p_slots_);
      RunHeads(sequence, i, true);
    }
    ShowMixedLengths(ctx_, a_, call.site, products_, pass_, {.q_slots = q_slots_, .p_slots = p_slots_});
  }

 private:
  // Computes scores, probabilities and metrics of all heads of a sequence, and with to_outputs also the outputs p v.
  void RunHeads(const PassSequence& sequence, size_t index, bool to_outputs) {
    const int64_t head_dim = a_.kv.head_dim;
    for (int kv_head = 0; kv_head < a_.kv.num_kv_heads; ++kv_head) {
      const int32_t* pages = a_.pass.pages + static_cast<int64_t>(index) * a_.pass.max_pages;
      LaunchForEach(ctx_, sequence.length * head_dim, WindowGatherer{a_.kv, pages, sequence.length, kv_head, k_, v_});
      Scratch scratch(ctx_.workspace);
      const PlainOperand k =
          QuantizeOperand(ctx_, scratch, {k_, sequence.length, head_dim, head_dim}, qk_, OperandSide::kB, a_.reporter);
      const PlainOperand v = QuantizeOperand(ctx_, scratch, {v_, head_dim, sequence.length, sequence.length}, av_,
                                             OperandSide::kB, a_.reporter);
      for (int head = kv_head * a_.group; head < (kv_head + 1) * a_.group; ++head) {
        Score(sequence, head, k);
        if (to_outputs) AddValues(sequence, head, v);
      }
    }
  }

  // Slots of the rows of one head, num_heads apart; empty without a rule.
  RowSlots SlotsOf(const LengthView& view, const uint8_t* slots, const PassSequence& sequence, int head) const {
    if (!view.has_rule) return {};
    return {slots + int64_t{sequence.first_row} * a_.num_heads + head, a_.num_heads};
  }

  // Computes the scores and then the probabilities of one head of a sequence in scores_. k: the quantized keys of its
  // KV head.
  void Score(const PassSequence& sequence, int head, const PlainOperand& k) {
    const int64_t head_dim = a_.kv.head_dim;
    const int64_t q_cols = a_.num_heads * head_dim;
    Scratch scratch(ctx_.workspace);
    const MatrixBatch rows(q_ + sequence.first_row * q_cols + head * head_dim, sequence.num_rows, head_dim, q_cols);
    const PlainOperand q = QuantizeOperand(ctx_, scratch, rows, qk_, OperandSide::kA, a_.reporter);
    PlainProduct product;
    product.lengths = products_.qk.view();
    product.a = q.activations(0);
    product.w = k.weight(0);
    product.slots = SlotsOf(products_.qk.view(), q_slots_, sequence, head);
    product.out = {scores_, sequence.length};
    if (products_.qk_hardware != nullptr) product.hardware = products_.qk_hardware->view();
    LaunchPlainProduct(ctx_, product);
    const int64_t first = int64_t{sequence.first_row} * a_.num_heads + head;
    const SoftmaxArgs softmax{scores_,
                              sequence.length,
                              sequence.start_position,
                              a_.window,
                              a_.inv_sqrt,
                              a_.score_cap,
                              products_.av.view(),
                              metrics_ + first,
                              products_.av.view().alone() ? p_slots_ + first : nullptr,
                              a_.num_heads,
                              a_.reporter,
                              exp_};
    WindowSoftmaxKernel<<<static_cast<unsigned>(sequence.num_rows), kThreads, 0, ctx_.stream>>>(softmax);
    STOCH_CUDA_LAUNCH("WindowSoftmaxKernel");
  }

  // Computes the outputs of one head of a sequence from the probabilities in scores_. v: the quantized values of its KV
  // head.
  void AddValues(const PassSequence& sequence, int head, const PlainOperand& v) {
    Scratch scratch(ctx_.workspace);
    const MatrixBatch rows(scores_, sequence.num_rows, sequence.length, sequence.length);
    const PlainOperand p = QuantizeOperand(ctx_, scratch, rows, av_, OperandSide::kA, a_.reporter);
    PlainProduct product;
    product.lengths = products_.av.view();
    product.a = p.activations(0);
    product.w = v.weight(0);
    product.slots = SlotsOf(products_.av.view(), p_slots_, sequence, head);
    product.out = {a_.out + sequence.first_row * a_.out_stride + int64_t{head} * a_.kv.head_dim, a_.out_stride};
    if (products_.av_hardware != nullptr) product.hardware = products_.av_hardware->view();
    LaunchPlainProduct(ctx_, product);
  }

  DeviceContext& ctx_;
  const AttentionArgs& a_;
  const MixedProducts& products_;
  const ScOperator& qk_;
  const ScOperator& av_;
  const CudaPass& pass_;
  Scratch scratch_;
  NonlinearView exp_;
  float* q_ = nullptr;  // [rows][num_heads * head_dim]: queries divided by the smoothing factors
  // [rows][num_heads]: metrics of the queries, then of the probabilities.
  float* metrics_ = nullptr;
  // [rows][num_heads]: slots (indices of stream lengths) of the queries and of the probabilities.
  uint8_t* q_slots_ = nullptr;
  uint8_t* p_slots_ = nullptr;
  float* extremes_ = nullptr;
  // Keys [positions][head_dim] and values [head_dim][positions] of one KV head of a sequence.
  float* k_ = nullptr;
  float* v_ = nullptr;
  float* scores_ = nullptr;  // [rows][positions] of one head: scores, then probabilities
};

}  // namespace

void LaunchPlainWindow(DeviceContext& ctx, const AttentionArgs& args, const AttentionCall& call,
                       const MixedProducts& products, const ScOperator& qk, const ScOperator& av,
                       const CudaPass& pass) {
  ctx.RequireEager();  // the host must know the sequences, which it does not while a graph is recorded
  WindowPass(ctx, args, products, qk, av, pass).Run(call);
}

}  // namespace stoch::cuda
