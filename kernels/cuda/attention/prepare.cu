// SPDX-License-Identifier: Apache-2.0
// RoPE and the append to the KV cache: one warp per row and head.
#include "kernels/cuda/attention/append.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace {

constexpr int kWarps = 4;

// Format in which keys and values are stored in the cache.
enum class Store : uint8_t { kFloat, kHalf, kCodes };

struct AppendArgs {
  AttentionArgs attention;
  QueryCodes q;
  int qk_q_max = 0;
  int av_q_max = 0;
  // [rows]: where the cache stores each row, page * page_tokens + position in the page; null: from the page table.
  const int32_t* slots = nullptr;
};

// Applies RoPE to queries and keys, appends keys and values to the cache, and stores queries: as codes in args.q
// (kCodes) or in place. Launched with one warp per (row, head), kWarps warps a block; the heads of a row are its query
// heads, then keys, then values.
template <Store kStore>
__global__ void __launch_bounds__(kWarps * 32) AppendKernel(const AppendArgs args) {
  const AttentionArgs& a = args.attention;
  StartNext();
  WaitForPrevious();
  a.reporter.Begin();
  const int lane = threadIdx.x & 31;
  HeadJob job;
  if (!job.Find(a, static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x >> 5))) return;
  const int row = job.row;
  const int head = job.head;
  const bool is_k = job.is_k;
  const int head_dim = a.kv.head_dim;
  const int half = head_dim / 2;
  HeadVector<> x;
  job.Load(a, x, lane);
  const float max_abs = WarpMaxAbs(x);
  if (lane == 0 && !IsFinite(max_abs)) a.reporter.Report();

  if (job.is_q) {
    if constexpr (kStore == Store::kCodes) {
      const int64_t vector = static_cast<int64_t>(row) * a.num_heads + head;
      const float scale = BipolarScale(max_abs, args.qk_q_max);
      if (lane == 0) args.q.scales[vector] = scale;
      uint8_t* codes = reinterpret_cast<uint8_t*>(args.q.words) + vector * head_dim;
      ForEachDim(x, half, lane,
                 [&](int i, float value) { codes[i] = SignMagnitude(BipolarLevel(value, scale, args.qk_q_max)); });
    } else {
      float* to = a.q + row * a.q_stride + head * head_dim;
      ForEachDim(x, half, lane, [&](int i, float value) { to[i] = value; });
    }
    return;
  }

  int32_t page;
  int slot = job.position;
  if (args.slots != nullptr) {
    slot = args.slots[row];
    page = slot >> a.kv.page_shift;
  } else {
    page = a.pass.pages[a.pass.row_sequence[row] * a.pass.max_pages + (job.position >> a.kv.page_shift)];
  }
  slot &= a.kv.page_tokens - 1;
  if constexpr (kStore == Store::kCodes) {
    const int q_max = is_k ? args.qk_q_max : args.av_q_max;
    const float scale = BipolarScale(max_abs, q_max);
    StoreCodes(a.kv, is_k, page, head, slot, x, half, lane, scale,
               [&](int /*dim*/, float value) { return SignMagnitude(BipolarLevel(value, scale, q_max)); });
  } else if constexpr (kStore == Store::kHalf) {
    __half* to = (is_k ? a.kv.k_half : a.kv.v_half) + a.kv.Value(page, head, slot);
    ForEachDim(x, half, lane, [&](int i, float value) { to[i] = __float2half_rn(value); });
  } else {
    float* to = (is_k ? a.kv.k : a.kv.v) + a.kv.Value(page, head, slot);
    ForEachDim(x, half, lane, [&](int i, float value) { to[i] = value; });
  }
}

template <Store kStore>
void Launch(DeviceContext& ctx, const AppendArgs& args) {
  const AttentionArgs& a = args.attention;
  const int64_t jobs = static_cast<int64_t>(a.rows) * (a.num_heads + 2 * a.kv.num_kv_heads);
  LaunchOverlapped(ctx, &AppendKernel<kStore>, dim3(static_cast<unsigned>((jobs + kWarps - 1) / kWarps)),
                   dim3(kWarps * 32), 0, args);
}

}  // namespace

void LaunchAppendValues(DeviceContext& ctx, const AttentionArgs& args, bool half, const int32_t* slots) {
  if (half) {
    Launch<Store::kHalf>(ctx, AppendArgs{args, {}, 0, 0, slots});
  } else {
    Launch<Store::kFloat>(ctx, AppendArgs{args, {}, 0, 0, slots});
  }
}

void LaunchAppendCodes(DeviceContext& ctx, const AttentionArgs& args, int qk_q_max, int av_q_max, const QueryCodes& q,
                       const int32_t* slots) {
  Launch<Store::kCodes>(ctx, AppendArgs{args, q, qk_q_max, av_q_max, slots});
}

}  // namespace stoch::cuda
