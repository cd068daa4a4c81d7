// SPDX-License-Identifier: Apache-2.0
// Mixed lengths in mode kPerToken: appends keys and values, quantizes queries with a stream length for every (row,
// head), and reports stream lengths to observers.
#include <algorithm>
#include <string_view>
#include <vector>

#include "kernels/cuda/attention/append.cuh"
#include "kernels/cuda/attention/mixed.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/quantizer.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {
namespace attention_mixed {
namespace {

constexpr int kAppendWarps = 4;
static_assert(sizeof(ByteTable) == kLengthTableBytes);

struct AppendArgs {
  AttentionArgs attention;
  ScopeParams qk, av;
  // Codes of the queries [rows][num_heads][head_dim].
  uint8_t* q_codes = nullptr;
  // Scales of the queries [rows][num_heads].
  float* q_scales = nullptr;
  ByteTable* q_tables = nullptr;  // [rows][num_heads]: count table at each query's length
  // [rows][num_heads]: slot (index of the length) of each query.
  uint8_t* q_slots = nullptr;
  LengthView qk_lengths;
  // Codes of the queries as ranks [rows][num_heads][head_dim], for wide tiles (ranks.h); null: not needed.
  uint8_t* wide_codes = nullptr;
  // [slots]: rank tables of all lengths of q k; null: not needed.
  const RankTable* qk_ranks = nullptr;
};

// Applies RoPE and quantizes, one warp per row and head. Codes and scales of k and v go to the cache. For a query, the
// codes, the scale, the slot of its length and the count table go to the arrays in `args`.
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
    ForEachDim(x, half, lane, [&](int i, float value) {
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
             [&](int /*dim*/, float value) { return scope.Code(params, value); });
}

// Reports the stream lengths of one product ("qk" or "av") to the observer, by sequence and head. slots:
// [rows][num_heads] in device memory. Waits for the stream.
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

}  // namespace stoch::cuda
