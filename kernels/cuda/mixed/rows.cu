// SPDX-License-Identifier: Apache-2.0
// Prepares rows of activations for a product with extras: gathers channels, applies smoothing, computes metrics,
// quantizes.
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/length_dispatch.h"
#include "kernels/cuda/device/lengths.cuh"
#include "kernels/cuda/device/quantizer.cuh"
#include "kernels/cuda/mixed/rows.h"
#include "kernels/cuda/runtime/for_each.cuh"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;
constexpr int kWarps = kThreads / kWarp;

// The channels of f(x) that a part of a weight multiplies. channels: [dims] column of each dimension, null: all in
// order; smooth: [cols] divisors, null: none.
struct PartRows {
  MixedRows input;
  const int32_t* channels = nullptr;
  const float* smooth = nullptr;

  __device__ float Plain(int64_t row, int64_t i) const {
    return input.x[row * input.stride + (channels == nullptr ? i : channels[i])];
  }
  __device__ float Smoothed(int64_t row, int64_t i) const {
    const int64_t channel = channels == nullptr ? i : channels[i];
    const float x = input.x[row * input.stride + channel];
    return smooth == nullptr ? x : x / smooth[channel];
  }
};

// Computes the metric of each (row, chunk): the largest magnitude. One warp per (row, chunk). metrics: [rows][chunks].
__global__ void __launch_bounds__(kThreads) ChunkMetricKernel(const PartRows rows, const ScDims dims, float* metrics) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (index >= rows.input.rows * dims.chunks) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = index / dims.chunks;
  const int64_t chunk = index % dims.chunks;
  uint32_t largest = 0;
  for (int64_t i = lane; i < dims.chunk_dims(chunk); i += kWarp) {
    largest = max(largest, FloatToBits(rows.Plain(row, chunk * dims.chunk_d + i)) & 0x7fffffffu);
  }
  largest = __reduce_max_sync(kAllLanes, largest);
  if (lane == 0) metrics[index] = BitsToFloat(largest);
}

// Arguments of QuantizePartKernel. Outputs: codes [rows][dims.padded], scales [chunks][rows], and for kAsymmetric zeros
// [rows] and sums [rows] (row sums of codes).
struct QuantizeArgs {
  PartRows rows;
  ScDims dims;
  ScopeParams params;
  ScArith arith = ScArith::kSc;
  // Rows that share a scale.
  int64_t group = 1;
  Extremes* extremes = nullptr;  // [chunks][rows]; null if group is 1
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  float* zeros = nullptr;
  int32_t* sums = nullptr;
  SiteReporter reporter;
};

// Extremes of one (row, chunk). Called by a whole warp; every lane gets the result.
__device__ Extremes ChunkExtremes(const QuantizeArgs& args, int64_t row, int64_t chunk, int lane) {
  const int64_t begin = chunk * args.dims.chunk_d;
  const int64_t n = args.dims.chunk_dims(chunk);
  Extremes e;
  Observe(e, args.rows.Smoothed(row, begin + (lane < n ? lane : 0)), true);
  for (int64_t i = lane + kWarp; i < n; i += kWarp) Observe(e, args.rows.Smoothed(row, begin + i), false);
  return WarpExtremes(e);
}

// Computes the extremes of each (row, chunk), for scales that several rows share. One warp per (row, chunk).
__global__ void __launch_bounds__(kThreads) PartExtremesKernel(const QuantizeArgs args) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (index >= args.rows.input.rows * args.dims.chunks) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Extremes e = ChunkExtremes(args, index % args.rows.input.rows, index / args.rows.input.rows, lane);
  if (lane == 0) args.extremes[index] = e;
}

// Writes the codes and the scale of each (row, chunk). One warp per (row, chunk).
__global__ void __launch_bounds__(kThreads) QuantizePartKernel(const QuantizeArgs args) {
  const int64_t rows = args.rows.input.rows;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (index >= rows * args.dims.chunks) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = index % rows;
  const int64_t chunk = index / rows;
  const int64_t begin = chunk * args.dims.chunk_d;
  const int64_t n = args.dims.chunk_dims(chunk);
  const Extremes e = args.extremes == nullptr
                         ? ChunkExtremes(args, row, chunk, lane)
                         : GroupExtremes(args.extremes + chunk * rows, row, rows, args.group, lane);
  const PlainScope scope(args.params, args.arith, e);
  uint8_t* codes = args.codes + row * args.dims.padded + chunk * args.dims.chunk_stride;
  int32_t sum = 0;
  for (int64_t i = lane; i < args.dims.chunk_padded(chunk); i += kWarp) {
    const uint8_t code = i < n ? scope.Code(args.params, args.rows.Smoothed(row, begin + i)) : uint8_t{0};
    codes[i] = code;
    sum += code;
  }
  sum = static_cast<int32_t>(__reduce_add_sync(kAllLanes, static_cast<unsigned>(sum)));
  if (lane != 0) return;
  args.scales[chunk * rows + row] = scope.scale;
  if (!scope.finite) args.reporter.Report();
  if (args.params.code != ScCode::kAsymmetric) return;
  args.zeros[row] = scope.zero;
  args.sums[row] = sum;
}

// to[i][j] = smoothed channel j of row order[i], one thread per element (LaunchForEach).
struct RowGatherer {
  PartRows rows;
  int64_t dims;
  const int32_t* order;
  float* to;
  int64_t stride;

  __device__ void operator()(int64_t i) const {
    to[i / dims * stride + i % dims] = rows.Smoothed(order[i / dims], i % dims);
  }
};

// out[order[i]] = from[i], or += from[i]; one thread per element (LaunchForEach).
struct RowScatterer {
  const float* from;
  const int32_t* order;
  int64_t cols;
  LinearOutput out;

  __device__ void operator()(int64_t i) const {
    float* to = out.data + order[i / cols] * out.stride + i % cols;
    *to = out.add ? *to + from[i] : from[i];
  }
};

unsigned Blocks(int64_t work, int per_block) { return static_cast<unsigned>((work + per_block - 1) / per_block); }

// Number of rows of side a (activations) that share a scale.
int64_t GroupRows(const ScOperator& op, int64_t rows) {
  const int64_t group = op.config.granularity == ScGranularity::kPerRow ? op.config.group_a : rows;
  return group < rows ? group : rows;
}

}  // namespace

MixedScratch TakeMixedScratch(Scratch& scratch, const MixedPart& part, int64_t rows) {
  MixedScratch taken;
  taken.codes = scratch.Take<uint8_t>(rows * part.view.dims.padded);
  taken.scales = scratch.Take<float>(rows * part.view.dims.chunks);
  taken.zeros = scratch.Take<float>(rows);
  taken.sums = scratch.Take<int32_t>(rows);
  taken.extremes = scratch.Take<Extremes>(GroupRows(part.op(), rows) > 1 ? rows * part.view.dims.chunks : 1);
  return taken;
}

void LaunchRowMetrics(DeviceContext& ctx, const MixedRows& input, const MixedPart& part, float* metrics) {
  const LengthView& view = part.lengths->view();
  if (view.scope == ScLengthScope::kChunk) {
    ChunkMetricKernel<<<Blocks(input.rows * part.view.dims.chunks, kWarps), kThreads, 0, ctx.stream>>>(
        PartRows{input, part.channels(), nullptr}, part.view.dims, metrics);
    STOCH_CUDA_LAUNCH("ChunkMetricKernel");
    return;
  }
  LaunchMetrics(ctx.stream, view, {input.x, input.rows, input.stride, 1, part.view.dims.dims, part.channels()},
                metrics);
}

ScActivationView LaunchQuantizePart(DeviceContext& ctx, const MixedRows& input, const MixedPart& part,
                                    const float* smooth, const MixedScratch& scratch, const SiteReporter& reporter) {
  const ScOperator& op = part.op();
  QuantizeArgs args;
  args.rows = {input, part.channels(), smooth};
  args.dims = part.view.dims;
  args.params = {op.code, op.q_max, op.scale_floor};
  args.arith = op.config.arith;
  args.group = GroupRows(op, input.rows);
  args.codes = scratch.codes;
  args.scales = scratch.scales;
  args.zeros = scratch.zeros;
  args.sums = scratch.sums;
  args.reporter = reporter;
  const unsigned blocks = Blocks(input.rows * args.dims.chunks, kWarps);
  if (args.group > 1) {
    args.extremes = static_cast<Extremes*>(scratch.extremes);
    PartExtremesKernel<<<blocks, kThreads, 0, ctx.stream>>>(args);
    STOCH_CUDA_LAUNCH("PartExtremesKernel");
  }
  QuantizePartKernel<<<blocks, kThreads, 0, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("QuantizePartKernel");
  return {args.dims, input.rows, args.codes, args.scales, args.zeros, args.sums};
}

void LaunchGatherRows(DeviceContext& ctx, const MixedRows& input, const MixedPart& part, const float* smooth,
                      const int32_t* order, float* to, int64_t stride) {
  const int64_t dims = part.view.dims.dims;
  LaunchForEach(ctx, input.rows * dims, RowGatherer{{input, part.channels(), smooth}, dims, order, to, stride});
}

void LaunchScatterRows(DeviceContext& ctx, const float* from, const int32_t* order, int64_t rows, int64_t cols,
                       const LinearOutput& out) {
  LaunchForEach(ctx, rows * cols, RowScatterer{from, order, cols, out});
}

}  // namespace stoch::cuda
