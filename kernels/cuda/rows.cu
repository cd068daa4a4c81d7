// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/dispatch.h"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/runtime/cluster_launch.h"
#include "kernels/cuda/runtime/for_each.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/elementary.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;

// One block per row of the output: converts table row ids[row] to floats. T: element type of the table. The table may
// be stored in the layout of an exact weight or of a fixed-point weight (EmbeddingView::Order); out is in natural
// order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    EmbedKernel(EmbeddingView table, const int32_t* ids, float* out, int64_t out_stride, SiteReporter reporter) {
  constexpr int kVector = 16 / sizeof(T);
  StartNext();
  WaitForPrevious();
  reporter.Begin();
  const int64_t row = blockIdx.x;
  const int64_t id = ids[row];
  const ExactWeightView& t = table.table;
  const T* rows = static_cast<const T*>(t.data);
  const T* from = rows + id * t.padded_cols;
  const FixedWeightView fixed{t.data, t.dtype, t.rows, t.cols, t.padded_cols, nullptr};
  float* to = out + row * out_stride;
  if (t.padded_cols % kVector != 0) {  // not packed (natural column order), and rows are not 16-byte aligned
#pragma unroll 8
    for (int64_t d = threadIdx.x; d < t.cols; d += kThreads) to[d] = ToFloat(from[d]);
    return;
  }
  // Loads are 16 bytes wide because the table may be pinned host memory, where each load of a warp is a PCIe packet.
#pragma unroll 4
  for (int64_t v = threadIdx.x; v < t.padded_cols / kVector; v += kThreads) {
    float x[kVector];
    Expand(LoadStreaming(table.order == EmbeddingView::Order::kFixed ? rows + fixed.vector_offset(id, v) * kVector
                                                                     : from + v * kVector),
           x, T());
    const bool lanes = table.order == EmbeddingView::Order::kExact;
    const int64_t first = lanes ? v / kDotLanes * kVector * kDotLanes + v % kDotLanes : v * kVector;
    const int64_t step = lanes ? kDotLanes : 1;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (first + i * step < t.cols) to[first + i * step] = x[i];
    }
  }
}

struct RowSelector {
  const float* x;
  int64_t x_stride;
  const int32_t* index;
  int64_t cols;
  float* out;
  int64_t out_stride;
  SiteReporter reporter;

  __device__ void operator()(int64_t i) const {
    out[i / cols * out_stride + i % cols] = x[index[i / cols] * x_stride + i % cols];
  }
};

// The largest number seen so far and its column; index -1: no number yet.
struct Best {
  float value = 0;
  int32_t index = -1;
};
__device__ Best Better(const Best& a, const Best& b) {
  if (b.index < 0) return a;
  if (a.index < 0) return b;
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

// Argmax of the pieces part, part + parts, part + 2 * parts, ... of a row x [n]; a piece is kThreads numbers. Called by
// all threads of a block; every thread gets the result. NaN is skipped.
__device__ Best PartArgmax(const float* x, int64_t n, int part, int parts) {
  __shared__ Best shared[kThreads / kWarp];
  constexpr int kInFlight = 16;
  Best best;
  const int64_t step = static_cast<int64_t>(parts) * kThreads;
  for (int64_t first = part * kThreads + threadIdx.x; first < n; first += kInFlight * step) {
    float v[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) v[k] = first + k * step < n ? x[first + k * step] : NAN;
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (v[k] == v[k]) best = Better(best, Best{v[k], static_cast<int32_t>(first + k * step)});
    }
  }
  for (int s = kWarp / 2; s > 0; s /= 2) {
    best = Better(best, Best{__shfl_xor_sync(kAllLanes, best.value, s), __shfl_xor_sync(kAllLanes, best.index, s)});
  }
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = best;
  __syncthreads();
  best = shared[0];
  for (int w = 1; w < kThreads / kWarp; ++w) best = Better(best, shared[w]);
  return best;
}

struct ArgmaxArgs {
  const float* logits = nullptr;
  int64_t stride = 0;
  int64_t n = 0;
  int32_t* ids = nullptr;
  SiteReporter reporter;
};

// One cluster of kArgmaxBlocks blocks per row of logits (one block without clusters); blockIdx.y is the row. A single
// block would read a vocabulary at a fraction of the speed at which the LM head wrote it.
constexpr int kArgmaxBlocks = 8;
__global__ void __launch_bounds__(kThreads) ArgmaxKernel(const ArgmaxArgs args) {
  __shared__ Best bests[kArgmaxBlocks];
  WaitForPrevious();
  args.reporter.Begin();
  const int rank = Cluster::Rank();
  const int size = Cluster::Size();
  const float* x = args.logits + blockIdx.y * args.stride;
  Best best = PartArgmax(x, args.n, rank, size);
  if (threadIdx.x == 0) Cluster::At(bests, 0)[rank] = best;
  Cluster::Sync();
  if (rank != 0 || threadIdx.x != 0) return;
  for (int r = 0; r < size; ++r) best = Better(best, bests[r]);
  args.ids[blockIdx.y] = best.index < 0 ? 0 : best.index;
}

}  // namespace

void LaunchEmbed(DeviceContext& ctx, const EmbeddingView& table, const int32_t* ids, int64_t rows, float* out,
                 int64_t out_stride) {
  if (rows == 0) return;
  DispatchFloat(table.table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    LaunchOverlapped(ctx, EmbedKernel<T>, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, table, ids, out,
                     out_stride, ctx.Reporter({-1, "embed"}));
  });
}

void LaunchSelectRows(DeviceContext& ctx, const float* x, int64_t x_stride, const int32_t* index, int64_t rows,
                      int64_t n, float* out, int64_t out_stride) {
  LaunchForEach(ctx, rows * n, RowSelector{x, x_stride, index, n, out, out_stride, ctx.Reporter({-1, "select_rows"})});
}

void LaunchArgmax(DeviceContext& ctx, const float* logits, int64_t stride, int64_t rows, int64_t n, int32_t* ids) {
  constexpr int64_t kRowsAtOnce = 32768;  // rows of one launch: gridDim.y is limited to 65535
  const int blocks = ctx.traits.has_clusters ? kArgmaxBlocks : 1;
  for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
    const auto count = static_cast<unsigned>(std::min(kRowsAtOnce, rows - first));
    LaunchClusters(ctx, ArgmaxKernel, dim3(static_cast<unsigned>(blocks), count), kThreads, 0,
                   ArgmaxArgs{logits + first * stride, stride, n, ids + first, ctx.Reporter({-1, "argmax"})});
  }
}

}  // namespace stoch::cuda
