// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/prologue/norm_factor.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/batch/quantize.cuh"
#include "kernels/cuda/sc/batch/quantize.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;
constexpr int kChunks = kThreads / kWarp;  // chunks of a block, one a warp

struct QuantizeArgs {
  RowSource source;
  ScDims dims;
  ScopeParams params;
  int64_t tokens = 0;
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  SiteReporter reporter;
};

// Quantizes chunks of f(x) to codes and scales. Block (x, y) takes chunks 8 x to 8 x + 7 of token y, one warp per
// chunk. Every block of a token computes the RMSNorm factor of the row again, which is cheaper than another kernel.
__global__ void __launch_bounds__(kThreads) BatchQuantizeKernel(const __grid_constant__ QuantizeArgs args) {
  __shared__ float fold[kRowLanes];
  const RowSource& source = args.source;
  const int64_t token = blockIdx.y;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t chunk = int64_t{blockIdx.x} * kChunks + static_cast<int>(threadIdx.x) / kWarp;
  const bool used = chunk < args.dims.chunks;
  ChunkOfRow<1> mine(source, args.dims, token, chunk, 0, lane);
  StartNext();
  if (used) mine.LoadNormWeights();
  WaitForPrevious();
  args.reporter.Begin();
  // All loads are issued before the norm is computed.
  if (used) mine.Load();
  float r = 0.0f;
  if (source.prologue == Prologue::kRmsNorm) {
    r = NormFactor(source.x + token * source.x_stride, args.dims.dims, source.norm_eps, fold);
  }
  if (!used) return;
  uint8_t* codes = args.codes + token * args.dims.padded + chunk * args.dims.chunk_stride;
  const ScopeQuantizer quantizer(args.params, Extremes{mine.MaxAbsBits(r)});
  mine.Codes(args.params, quantizer, [&](int d, uint8_t code) {
    if (d < args.dims.chunk_padded(chunk)) codes[d] = code;
  });
  if (lane == 0) {
    args.scales[chunk * args.tokens + token] = quantizer.scale;
    if (!quantizer.finite) args.reporter.Report();
  }
}

}  // namespace

bool BatchQuantizes(const ScOperator& op, const ScDims& dims) {
  return op.code == ScCode::kSignMagnitude && op.config.granularity == ScGranularity::kPerRow &&
         op.config.group_a == 1 && dims.chunk_d <= ChunkOfRow<1>::kMaxDims;
}

ScActivationView LaunchBatchQuantize(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t tokens,
                                     int64_t in_features, const ScOperator& op, const SiteReporter& reporter) {
  QuantizeArgs args;
  args.source = source;
  args.dims = MakeScDims(in_features, op.config.chunk_d);
  args.params = {op.code, op.q_max};
  args.tokens = tokens;
  args.codes = scratch.Take<uint8_t>(tokens * args.dims.padded);
  args.scales = scratch.Take<float>(tokens * args.dims.chunks);
  args.reporter = reporter;
  LaunchOverlapped(
      ctx, BatchQuantizeKernel,
      dim3(static_cast<unsigned>((args.dims.chunks + kChunks - 1) / kChunks), static_cast<unsigned>(tokens)),
      dim3(kThreads), size_t{0}, args);
  return ScActivationView{args.dims, tokens, args.codes, args.scales};
}

}  // namespace stoch::cuda
