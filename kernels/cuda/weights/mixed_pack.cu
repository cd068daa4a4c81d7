// SPDX-License-Identifier: Apache-2.0
// A warp per (row, chunk): loading is not where the time of a mixed product goes.
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/dispatch.h"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/quantizer.cuh"
#include "kernels/cuda/weights/mixed_pack.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

struct PackArgs {
  const void* data = nullptr;
  int64_t stride = 0;
  int64_t first_row = 0;
  int64_t rows = 0;  // of the slab
  ScopeParams params;
  int64_t group = 1;
  const int32_t* channels = nullptr;
  const float* smooth = nullptr;
  Extremes* extremes = nullptr;  // [chunks][rows] where group > 1
  ScWeightView to;
  int64_t* first_bad = nullptr;
};

// Element i of the part of a row.
template <typename T>
__device__ float PartValue(const PackArgs& args, int64_t row, int64_t i) {
  const int64_t channel = args.channels == nullptr ? i : args.channels[i];
  const float x = ToFloat(static_cast<const T*>(args.data)[row * args.stride + channel]);
  return args.smooth == nullptr ? x : x * args.smooth[channel];
}

template <typename T>
__device__ Extremes RowExtremes(const PackArgs& args, int64_t row, int64_t begin, int64_t n, int lane) {
  Extremes e;
  Observe(e, PartValue<T>(args, row, begin + (lane < n ? lane : 0)), true);
  for (int64_t i = lane + kWarp; i < n; i += kWarp) Observe(e, PartValue<T>(args, row, begin + i), false);
  return WarpExtremes(e);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) PackExtremesKernel(const PackArgs args) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (index >= args.rows * args.to.dims.chunks) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = index % args.rows;
  const int64_t chunk = index / args.rows;
  const Extremes e = RowExtremes<T>(args, row, chunk * args.to.dims.chunk_d, args.to.dims.chunk_dims(chunk), lane);
  if (lane == 0) args.extremes[index] = e;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) PackMixedKernel(const PackArgs args) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (index >= args.rows * args.to.dims.chunks) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = index % args.rows;
  const int64_t chunk = index / args.rows;
  const int64_t begin = chunk * args.to.dims.chunk_d;
  const int64_t n = args.to.dims.chunk_dims(chunk);
  const Extremes e = args.extremes == nullptr
                         ? RowExtremes<T>(args, row, begin, n, lane)
                         : GroupExtremes(args.extremes + chunk * args.rows, row, args.rows, args.group, lane);
  const ScopeQuantizer scope(args.params, e);
  const int64_t to_row = args.first_row + row;
  auto* codes = const_cast<uint8_t*>(args.to.codes);
  int32_t sum = 0;
  for (int64_t i = lane; i < n; i += kWarp) {
    const uint8_t code = scope.Code(args.params, PartValue<T>(args, row, begin + i));
    codes[args.to.code_offset(to_row, chunk * args.to.dims.chunk_stride + i)] = code;
    sum += code;
  }
  sum = static_cast<int32_t>(__reduce_add_sync(kAllLanes, static_cast<unsigned>(sum)));
  if (lane != 0) return;
  if (!scope.finite) {
    atomicMin(reinterpret_cast<unsigned long long*>(args.first_bad), static_cast<unsigned long long>(to_row));
  }
  const_cast<float*>(args.to.scales)[chunk * args.to.rows_padded + to_row] = scope.scale;
  if (args.params.code != ScCode::kAsymmetric) return;
  const_cast<float*>(args.to.zeros)[to_row] = scope.zero;
  const_cast<int32_t*>(args.to.sums)[to_row] = sum;
}

}  // namespace

void LaunchPackMixed(DeviceContext& ctx, const WeightSlab& slab, int64_t stride, const ScOperator& op, int64_t group,
                     const int32_t* channels, const float* smooth, const ScWeightView& to, int64_t* first_bad) {
  PackArgs args;
  args.data = slab.data;
  args.stride = stride;
  args.first_row = slab.first_row;
  args.rows = slab.rows;
  args.params = {op.code, op.q_max, op.scale_floor};
  args.group = group;
  args.channels = channels;
  args.smooth = smooth;
  args.to = to;
  args.first_bad = first_bad;
  const int64_t warps = slab.rows * to.dims.chunks;
  const auto blocks = static_cast<unsigned>((warps + kWarps - 1) / kWarps);
  Scratch scratch(ctx.workspace);
  DispatchFloat(slab.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (group > 1) {
      args.extremes = scratch.Take<Extremes>(warps);
      PackExtremesKernel<T><<<blocks, kThreads, 0, ctx.stream>>>(args);
      STOCH_CUDA_LAUNCH("PackExtremesKernel");
    }
    PackMixedKernel<T><<<blocks, kThreads, 0, ctx.stream>>>(args);
    STOCH_CUDA_LAUNCH("PackMixedKernel");
  });
}

}  // namespace stoch::cuda
