// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention/append.cuh"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/length_dispatch.h"
#include "kernels/cuda/device/quantizer.cuh"
#include "kernels/cuda/plain/attention_append.h"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda::plain_attention {
namespace {

// Warps of a block; each takes one head vector.
constexpr int kAppendWarps = 4;
// Most blocks of kMxBlock dimensions in a head, each with a scale of its own (MXINT8), for heads of up to 256
// dimensions.
constexpr int kMostBlocks = 256 / kMxBlock;

struct AppendArgs {
  AttentionArgs attention;
  ScopeParams qk, av;
  ScArith qk_arith = ScArith::kSc, av_arith = ScArith::kSc;
  const float* smooth = nullptr;  // smoothing factors [num_kv_heads][head_dim] (AttentionCall::qk_smooth); null: none
  HardwareView qk_hardware, av_hardware;
  // ScSite::number by which faults are drawn: qk_site is that of query head 0; qk_key_site and av_site are those of the
  // first KV head, for keys and for values.
  uint64_t qk_site = 0;
  uint64_t qk_key_site = 0, av_site = 0;
  AppendedQueries queries;
  const int32_t* slots = nullptr;
};

// Reads codes with the faults of one row and head: some bits of a stored code may flip (kernels/sc/hardware).
struct FaultyReader {
  const ScWordFaultView& words;
  uint64_t key = 0;

  __device__ FaultyReader(const HardwareView& view, FaultKind kind, uint64_t site, uint64_t row)
      : words(kind == FaultKind::kWeight ? view.weight : view.activation) {
    if (words.any()) key = RandomBits(SiteKey(view.seed, kind, site), 0, row);
  }
  __device__ uint8_t operator()(uint8_t code, int column) const {
    if (!words.any()) return code;
    int level = 0;
    return words.ReadCode(code, key, static_cast<uint64_t>(column), &level);
  }
};

// Divides a query by the smoothing factors [head_dim] of its KV head, or multiplies a key by them. By one warp.
__device__ void Smooth(HeadVector<>& x, const float* factors, bool is_q, int half, int lane) {
  HeadVector<> s;
  LoadHead(s, factors, half, lane);
#pragma unroll
  for (int j = 0; j < kMaxPairs; ++j) {
    if (lane + 32 * j >= half) continue;
    x.low[j] = is_q ? x.low[j] / s.low[j] : x.low[j] * s.low[j];
    x.high[j] = is_q ? x.high[j] / s.high[j] : x.high[j] * s.high[j];
  }
}

// Quantizes a query or a key in MXINT8, by one warp: a scale for each of `blocks` blocks of kMxBlock dimensions goes to
// `scales`, the code of dimension d to *code_at(d). largest: [blocks] shared memory of the warp. Returns whether all
// numbers are finite.
template <typename CodeAt>
__device__ bool QuantizeBlocks(const HeadVector<>& x, int half, int lane, int blocks, uint32_t* largest, float* scales,
                               const CodeAt& code_at) {
  if (lane < blocks) largest[lane] = 0;
  __syncwarp();
  ForEachDim(x, half, lane,
             [&](int i, float value) { atomicMax(&largest[i / kMxBlock], FloatToBits(value) & 0x7fffffffu); });
  __syncwarp();
  ForEachDim(x, half, lane, [&](int i, float value) {
    const float scale = MxScale(BitsToFloat(largest[i / kMxBlock]));
    *code_at(i) = static_cast<uint8_t>(BipolarLevel(value, scale, kMxLevels) + kMxLevels);
  });
  if (lane < blocks) scales[lane] = MxScale(BitsToFloat(largest[lane]));
  return __all_sync(0xffffffffu, lane >= blocks || IsFinite(BitsToFloat(largest[lane])));
}

// RoPE, quantization and the append, launched with one warp per (row, head). Queries after RoPE are stored in place;
// divided by the smoothing factors, they go to args.queries as codes (kPerToken) or floats. Keys and values go to the
// cache.
__global__ void __launch_bounds__(kAppendWarps * 32) PlainAppendKernel(const __grid_constant__ AppendArgs args) {
  __shared__ uint32_t largest[kAppendWarps][kMostBlocks];
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
  const int32_t sequence = a.pass.row_sequence[row];
  const uint64_t fault_row = FaultRow(a.pass.sequences[sequence].number, job.position);
  HeadVector<> x;
  job.Load(a, x, lane);
  if (job.is_q) {
    // This stores q rotated, but not yet divided by the smoothing factors: stream lengths depend on q in this form.
    float* to = a.q + row * a.q_stride + head * head_dim;
    ForEachDim(x, half, lane, [&](int i, float value) { to[i] = value; });
  }
  if (args.smooth != nullptr && (job.is_q || job.is_k)) {
    Smooth(x, args.smooth + (job.is_q ? head / a.group : head) * head_dim, job.is_q, half, lane);
  }
  const int32_t* const slots = args.slots;
  const int slot = (slots != nullptr ? slots[row] : job.position) & (a.kv.page_tokens - 1);
  const int32_t page = slots != nullptr
                           ? slots[row] >> a.kv.page_shift
                           : a.pass.pages[int64_t{sequence} * a.pass.max_pages + (job.position >> a.kv.page_shift)];
  // kPerHead, kPerRow: floats, since every pass quantizes the whole window again.
  if (args.queries.q_values != nullptr) {
    float* to = args.queries.q_values + (row * a.num_heads + head) * head_dim;
    if (!job.is_q) to = (job.is_k ? a.kv.k : a.kv.v) + a.kv.Value(page, head, slot);
    const float largest = WarpMaxAbs(x);
    if (lane == 0 && !IsFinite(largest)) a.reporter.Report();
    ForEachDim(x, half, lane, [&](int i, float value) { to[i] = value; });
    return;
  }
  if (args.qk_arith == ScArith::kMxInt8 && (job.is_q || job.is_k)) {
    const int blocks = a.kv.key_scales;
    const int64_t vector = row * a.num_heads + head;
    auto* const keys = reinterpret_cast<uint8_t*>(a.kv.k_words);
    float* scales =
        job.is_q ? args.queries.scales + vector * blocks : a.kv.k_scales + a.kv.Scale(page, head, slot) * blocks;
    const auto code_at = [&](int i) {
      return job.is_q ? args.queries.codes + vector * head_dim + i
                      : keys + a.kv.KWord(page, head, i >> 2, slot) * 4 + (i & 3);
    };
    if (!QuantizeBlocks(x, half, lane, blocks, largest[threadIdx.x >> 5], scales, code_at) && lane == 0) {
      a.reporter.Report();
    }
    return;
  }
  Extremes e;
  e.max_abs_bits = FloatToBits(WarpMaxAbs(x));
  const ScopeParams& params = job.is_q || job.is_k ? args.qk : args.av;
  const PlainScope scope(params, job.is_q || job.is_k ? args.qk_arith : args.av_arith, e);
  if (lane == 0 && !scope.finite) a.reporter.Report();
  if (job.is_q) {
    const int64_t vector = row * a.num_heads + head;
    if (lane == 0) args.queries.scales[vector] = scope.scale;
    const FaultyReader read(args.qk_hardware, FaultKind::kActivation, args.qk_site + head, fault_row);
    ForEachDim(x, half, lane, [&](int i, float value) {
      args.queries.codes[vector * head_dim + i] = read(scope.Code(params, value), i);
    });
    return;
  }
  const FaultyReader read(job.is_k ? args.qk_hardware : args.av_hardware, FaultKind::kWeight,
                          (job.is_k ? args.qk_key_site : args.av_site) + head, fault_row);
  StoreCodes(a.kv, job.is_k, page, head, slot, x, half, lane, scope.scale,
             [&](int i, float value) { return read(scope.Code(params, value), i); });
}

// Picks the slots (indices of stream lengths) of `rows` rows and all heads from their metrics. A rule that depends on
// all rows of a call takes these rows and heads as one call (rules by fractions: the rows of each head as one).
void DispatchRows(DeviceContext& ctx, const LengthView& view, int64_t heads, int64_t first_row, int64_t rows,
                  const float* metrics, float* extremes, uint8_t* slots) {
  if (view.scope != ScLengthScope::kFractions) {
    LaunchDispatch(ctx.stream, view, metrics, 1, 1, {first_row * heads, rows * heads, 1}, extremes, slots);
    return;
  }
  for (int64_t head = 0; head < heads; ++head) {  // a rule by fractions orders the rows of one head
    LaunchDispatch(ctx.stream, view, metrics, 1, 1, {first_row * heads + head, rows, heads}, extremes, slots);
  }
}

}  // namespace

void DispatchSequence(DeviceContext& ctx, const LengthView& view, const AttentionArgs& args,
                      const PassSequence& sequence, const float* metrics, float* extremes, uint8_t* slots) {
  DispatchRows(ctx, view, args.num_heads, sequence.first_row, sequence.num_rows, metrics, extremes, slots);
}

void DispatchCalls(DeviceContext& ctx, const LengthView& view, const AttentionArgs& a, const CudaPass& pass,
                   bool recording, const float* metrics, float* extremes, uint8_t* slots) {
  if (recording || view.alone()) return DispatchRows(ctx, view, a.num_heads, 0, a.rows, metrics, extremes, slots);
  for (const PassSequence& sequence : pass.sequences()) {
    DispatchSequence(ctx, view, a, sequence, metrics, extremes, slots);
  }
}

void LaunchAppend(DeviceContext& ctx, const AttentionArgs& args, const AttentionCall& call,
                  const MixedProducts& products, const AppendedQueries& queries, const int32_t* slots) {
  const LengthView& qk = products.qk.view();
  const LengthView& av = products.av.view();
  AppendArgs append;
  append.attention = args;
  append.qk = {qk.code, qk.q_max, qk.scale_floor};
  append.av = {av.code, av.q_max, av.scale_floor};
  append.qk_arith = qk.arith;
  append.av_arith = av.arith;
  append.smooth = call.qk_smooth.ptr<const float>();
  if (products.qk_hardware != nullptr) append.qk_hardware = products.qk_hardware->view();
  if (products.av_hardware != nullptr) append.av_hardware = products.av_hardware->view();
  const int64_t first_kv_head = call.first_head / args.group;
  append.qk_site = SiteNumber(call, kQkOperator, call.first_head);
  append.qk_key_site = SiteNumber(call, kQkOperator, first_kv_head);
  append.av_site = SiteNumber(call, kAvOperator, first_kv_head);
  append.queries = queries;
  append.slots = slots;
  if (args.k == nullptr) append.attention.kv.num_kv_heads = 0;
  const int64_t jobs = static_cast<int64_t>(args.rows) * (args.num_heads + 2 * append.attention.kv.num_kv_heads);
  LaunchOverlapped(ctx, &PlainAppendKernel, dim3(static_cast<unsigned>((jobs + kAppendWarps - 1) / kAppendWarps)),
                   dim3(kAppendWarps * 32), 0, append);
}

void LaunchQueryMetrics(DeviceContext& ctx, const AttentionArgs& args, const LengthView& view, float* metrics) {
  LaunchMetrics(ctx.stream, view, {args.q, args.rows, args.q_stride, args.num_heads, args.kv.head_dim, nullptr},
                metrics);
}

}  // namespace stoch::cuda::plain_attention

namespace stoch::cuda {

void LaunchPlainAppend(DeviceContext& ctx, const AttentionArgs& args, const AttentionCall& call,
                       const MixedProducts& products, const int32_t* slots) {
  plain_attention::LaunchAppend(ctx, args, call, products, {}, slots);
}

}  // namespace stoch::cuda
