// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/length_dispatch.h"
#include "kernels/cuda/device/lengths.cuh"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;

// Computes the metric (largest magnitude, norm or crest factor) of each vector of a call. One block per vector.
__global__ void __launch_bounds__(kRowLanes)
    MetricKernel(const LengthView view, const MetricVectors vectors, float* metrics) {
  __shared__ float shared[kRowLanes];
  const int64_t index = blockIdx.x;
  const float* x = vectors.x + index / vectors.per_row * vectors.row_stride + index % vectors.per_row * vectors.dims;
  const float metric = BlockMetric(view.metric, view.sign, vectors.dims, shared,
                                   [&](int64_t i) { return x[vectors.channels == nullptr ? i : vectors.channels[i]]; });
  if (threadIdx.x == 0) metrics[index] = metric;
}

struct DispatchArgs {
  LengthView view;
  const float* metrics = nullptr;
  int64_t metrics_per_row = 1;
  int64_t slots_per_row = 1;
  DispatchRange range;
  float* extremes = nullptr;  // [2]: least and largest metric of the call; written by ExtremesKernel
  uint8_t* slots = nullptr;

  __device__ int64_t Row(int64_t i) const { return range.first + i * range.step; }
};

// Finds the least and the largest metric of a call. A single block, because a call has at most a few million metrics.
__global__ void __launch_bounds__(kThreads) ExtremesKernel(const DispatchArgs args) {
  __shared__ float lows[kThreads];
  __shared__ float highs[kThreads];
  const int64_t count = args.range.rows * args.metrics_per_row;
  const auto metric = [&](int64_t i) {
    return args.metrics[args.Row(i / args.metrics_per_row) * args.metrics_per_row + i % args.metrics_per_row];
  };
  float low = metric(0);
  float high = low;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    const float m = metric(i);
    low = m < low ? m : low;
    high = m > high ? m : high;
  }
  lows[threadIdx.x] = low;
  highs[threadIdx.x] = high;
  __syncthreads();
  for (int s = kThreads / 2; s > 0; s /= 2) {
    if (static_cast<int>(threadIdx.x) < s) {
      lows[threadIdx.x] = lows[threadIdx.x + s] < lows[threadIdx.x] ? lows[threadIdx.x + s] : lows[threadIdx.x];
      highs[threadIdx.x] = highs[threadIdx.x + s] > highs[threadIdx.x] ? highs[threadIdx.x + s] : highs[threadIdx.x];
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  args.extremes[0] = lows[0];
  args.extremes[1] = highs[0];
}

// The level of row i under a rule of fractions. Rows are ranked by descending metric, ties by index; the first
// rint(f_0 * rows) rows get level 0, the next rint(f_1 * rows) level 1, and so on; remaining rows get the last level.
// Called by one thread per slot.
__device__ int FractionLevel(const DispatchArgs& args, int64_t i) {
  const float own = args.metrics[args.Row(i)];
  int64_t before = 0;
  for (int64_t j = 0; j < args.range.rows; ++j) {
    const float other = args.metrics[args.Row(j)];
    before += other > own || (other == own && j < i) ? 1 : 0;
  }
  int64_t end = 0;
  for (int level = 0; level < args.view.num_thresholds && level < args.view.num_fractions; ++level) {
    const auto rows = static_cast<int64_t>(rint(args.view.fractions[level] * static_cast<double>(args.range.rows)));
    end += rows > 0 ? rows : 0;
    if (before < end) return level;
  }
  return args.view.num_thresholds;
}

// Writes the slots [rows][slots_per_row] of a call: one per row, or one per (row, chunk). One thread per slot.
__global__ void __launch_bounds__(kThreads) DispatchKernel(const DispatchArgs args) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= args.range.rows * args.slots_per_row) return;
  const int64_t i = index / args.slots_per_row;
  const int64_t chunk = index % args.slots_per_row;
  int level = 0;
  if (args.view.scope == ScLengthScope::kFractions) {
    level = FractionLevel(args, i);
  } else {
    const float metric = args.metrics[args.Row(i) * args.metrics_per_row + (args.metrics_per_row > 1 ? chunk : 0)];
    level = args.view.normalise == ScNormalise::kFixed
                ? FixedLevel(args.view, metric)
                : CallLevel(args.view, metric, args.extremes[0], args.extremes[1]);
  }
  args.slots[args.Row(i) * args.slots_per_row + chunk] = SlotOfLevel(args.view, level, chunk);
}

}  // namespace

void LaunchMetrics(cudaStream_t stream, const LengthView& view, const MetricVectors& vectors, float* metrics) {
  const int64_t count = vectors.rows * vectors.per_row;
  if (count == 0) return;
  MetricKernel<<<static_cast<unsigned>(count), kRowLanes, 0, stream>>>(view, vectors, metrics);
  STOCH_CUDA_LAUNCH("MetricKernel");
}

void LaunchDispatch(cudaStream_t stream, const LengthView& view, const float* metrics, int64_t metrics_per_row,
                    int64_t slots_per_row, const DispatchRange& range, float* extremes, uint8_t* slots) {
  if (range.rows == 0) return;
  const DispatchArgs args{view, metrics, metrics_per_row, slots_per_row, range, extremes, slots};
  if (view.normalise == ScNormalise::kCall && view.scope != ScLengthScope::kFractions) {
    ExtremesKernel<<<1, kThreads, 0, stream>>>(args);
    STOCH_CUDA_LAUNCH("ExtremesKernel");
  }
  const int64_t count = range.rows * slots_per_row;
  DispatchKernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(args);
  STOCH_CUDA_LAUNCH("DispatchKernel");
}

}  // namespace stoch::cuda
