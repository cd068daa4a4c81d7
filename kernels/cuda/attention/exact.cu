// SPDX-License-Identifier: Apache-2.0
// Attention of single rows without SC, in floats: one block per row and query head, with sums in the order of
// kernels/math/reduce.h. Keys and values are floats, or halves of the fp16 baseline.
//
// Scores: a half-warp computes one token's dot product; its 16 threads are the kDotLanes lanes of the sum. p v: lane j
// of the sum over positions takes positions j, j + 16, ...; a warp owns two lanes of every dimension, so no lane is
// split between warps.
#include <algorithm>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/block_softmax.cuh"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/elementary.h"
#include "kernels/math/gated.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;
constexpr int kWarps = kBlockWarps;
constexpr int kHalfWarps = 2 * kWarps;
constexpr int kLanesPerWarp = kDotLanes / kWarps;
constexpr int kMaxHeadDim = 256;

struct RowArgs {
  AttentionArgs attention;
  const int32_t* row_list = nullptr;  // [rows of the launch]; null: rows row_offset, row_offset + 1, ...
  int32_t row_offset = 0;
  // Scores of contexts longer than shared_scores, [rows of the launch][num_heads][spill_stride].
  float* spill = nullptr;
  int64_t spill_stride = 0;
  // Positions whose scores fit in shared memory.
  int32_t shared_scores = 0;
  NonlinearView exp;  // table in place of Exp; read if kTable
};

// Computes attention of one row and query head per block: gridDim is (num_heads, rows). T: float or __half; kTable: exp
// from a table; head_dim is at most 32 kSlots.
template <int kSlots, typename T, bool kTable>
__global__ void __launch_bounds__(kThreads) ExactRowKernel(const RowArgs args) {
  extern __shared__ float shared_scores[];
  __shared__ float lanes[kDotLanes * kMaxHeadDim];
  __shared__ float reduce[kRowLanes];
  const AttentionArgs& a = args.attention;
  const KvView& kv = a.kv;
  const int tid = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.x);
  const int kv_head = head / a.group;
  const int grid_row = static_cast<int>(blockIdx.y);
  const int row = args.row_list != nullptr ? args.row_list[grid_row] : args.row_offset + grid_row;
  const int head_dim = kv.head_dim;
  const int32_t* pages = a.pass.pages + static_cast<int64_t>(a.pass.row_sequence[row]) * a.pass.max_pages;
  const int length = a.pass.positions[row] + 1;
  const int visible = a.window > 0 ? max(length - a.window, 0) : 0;  // the first position that the row sees
  const auto offset_of = [&](int t) { return kv.Value(pages[t >> kv.page_shift], kv_head, t & (kv.page_tokens - 1)); };
  float* scores = length <= args.shared_scores
                      ? shared_scores
                      : args.spill + (static_cast<int64_t>(grid_row) * a.num_heads + head) * args.spill_stride;

  // ---- scores: half-warp i takes tokens i, i + kHalfWarps, ...
  const int dot_lane = tid % kDotLanes;
  float q[kSlots * 2];
#pragma unroll
  for (int i = 0; i < kSlots * 2; ++i) {
    const int d = dot_lane + kDotLanes * i;
    q[i] = d < head_dim ? a.q[row * a.q_stride + static_cast<int64_t>(head) * head_dim + d] : 0.0f;
  }
  // rounded up, so that all lanes of a warp reach the shuffles
  const int padded = (length + kHalfWarps - 1) / kHalfWarps * kHalfWarps;
#pragma unroll 4
  for (int base = tid / kDotLanes; base < padded; base += kHalfWarps) {
    const int t = min(base, length - 1);
    const T* k = kv.keys<T>() + offset_of(t);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kSlots * 2; ++i) {
      const int d = dot_lane + kDotLanes * i;
      if (d < head_dim) sum = Fma(q[i], ToFloat(k[d]), sum);
    }
#pragma unroll
    for (int s = kDotLanes / 2; s > 0; s /= 2) sum = sum + __shfl_down_sync(0xffffffffu, sum, s, kDotLanes);
    if (dot_lane == 0 && base < length) {
      scores[t] = t < visible ? BitsToFloat(0xff800000u) : PlusZero(sum) * a.inv_sqrt;
    }
  }
  __syncthreads();

  // ---- softmax: thread j is lane j of the sum
  if (a.score_cap > 0.0f) {
    for (int t = tid; t < length; t += kThreads) {
      if (t >= visible) scores[t] = SoftCap(scores[t], a.score_cap);
    }
  }
  const float largest = BlockLargest(scores, 0, length, reduce);
  const float sum = BlockSoftmax(scores, 0, length, largest, reduce,
                                 [&](int, float x) { return kTable ? args.exp.ExpAt(x) : Exp(x); });
  if (tid == 0 && !IsFinite(sum)) a.reporter.Report();
  __syncthreads();

  // ---- p v: a warp computes two lanes of the sum over positions, each thread for every 32nd dimension; then thread d
  // folds the kDotLanes lanes of dimension d
  const int lane = tid & 31;
  const int warp = tid >> 5;
#pragma unroll
  for (int l = 0; l < kLanesPerWarp; ++l) {
    const int first = warp * kLanesPerWarp + l;
    float acc[kSlots] = {};
#pragma unroll 4
    for (int t = first; t < length; t += kDotLanes) {
      const float p = scores[t];
      const T* v = kv.values<T>() + offset_of(t) + lane;
#pragma unroll
      for (int j = 0; j < kSlots; ++j) {
        if (lane + 32 * j < head_dim) acc[j] = Fma(p, ToFloat(v[32 * j]), acc[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      if (lane + 32 * j < head_dim) lanes[first * head_dim + lane + 32 * j] = acc[j];
    }
  }
  __syncthreads();
  if (tid >= head_dim) return;
  float column[kDotLanes];
#pragma unroll
  for (int j = 0; j < kDotLanes; ++j) column[j] = lanes[j * head_dim + tid];
  a.out[row * a.out_stride + static_cast<int64_t>(head) * head_dim + tid] = FoldLanes<kDotLanes>(column);
}

template <int kSlots>
void Launch(DeviceContext& ctx, const RowArgs& args, int rows) {
  const size_t shared = static_cast<size_t>(args.shared_scores) * sizeof(float);
  const bool is_half = args.attention.kv.k_half != nullptr;
  const auto kernel = args.exp.size > 0
                          ? (is_half ? &ExactRowKernel<kSlots, __half, true> : &ExactRowKernel<kSlots, float, true>)
                          : (is_half ? &ExactRowKernel<kSlots, __half, false> : &ExactRowKernel<kSlots, float, false>);
  AllowShared(ctx, kernel, shared);
  const dim3 grid(static_cast<unsigned>(args.attention.num_heads), static_cast<unsigned>(rows));
  kernel<<<grid, kThreads, shared, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("ExactRowKernel");
}

}  // namespace

void LaunchExactRows(DeviceContext& ctx, const AttentionArgs& args, const RowSet& rows, const ScoreSpill& spill,
                     const NonlinearView& exp) {
  RowArgs row_args;
  row_args.exp = exp;
  row_args.attention = args;
  row_args.shared_scores = std::min((rows.max_length + 255) / 256 * 256, kMaxSharedScores);
  row_args.spill = spill.scores;
  row_args.spill_stride = spill.stride;
  for (int first = 0; first < rows.count; first += spill.rows_at_once) {
    const int count = std::min(spill.rows_at_once, rows.count - first);
    row_args.row_list = rows.list != nullptr ? rows.list + first : nullptr;
    row_args.row_offset = first;
    DispatchSlots(args.kv.head_dim, [&]<int kSlots>() { Launch<kSlots>(ctx, row_args, count); });
  }
}

}  // namespace stoch::cuda
