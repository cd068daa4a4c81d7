#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_factor.cuh"
#include "kernels/cuda/quantizer.cuh"
#include "kernels/cuda/sc_batch.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;
constexpr int kChunks = kThreads / kWarp;  // of a block
constexpr int kEach = 4;                   // elements of a lane
constexpr int kMaxChunkDims = kEach * kWarp;

struct QuantizeArgs {
  RowSource source;
  ScDims dims;
  QuantizerParams params;
  int64_t rows = 0;
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  FiniteReporter reporter;
};

// Block (x, y): chunks 8 x to 8 x + 7 of row y. Every block of a row finds the norm anew: that is cheaper than a kernel
// of its own.
__global__ void __launch_bounds__(kThreads) BatchQuantizeKernel(const __grid_constant__ QuantizeArgs args) {
  __shared__ float fold[kRowLanes];
  const RowSource& source = args.source;
  const int64_t row = blockIdx.y;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t chunk = int64_t{blockIdx.x} * kChunks + static_cast<int>(threadIdx.x) / kWarp;
  const bool used = chunk < args.dims.chunks;
  const int64_t begin = chunk * args.dims.chunk_d;
  const int64_t dims = used ? args.dims.chunk_dims(chunk) : 0;
  const float* from = source.x + row * source.x_stride;
  StartNext();
  float y[kEach] = {};
  if (source.prologue == Prologue::kRmsNorm) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (lane + k * kWarp < dims) y[k] = source.norm_weight[begin + lane + k * kWarp];
    }
  }
  WaitForPrevious();
  // Everything is loaded before the norm is known.
  float x[kEach] = {};
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = begin + lane + k * kWarp;
    if (lane + k * kWarp >= dims) continue;
    x[k] = from[i];
    if (source.prologue == Prologue::kSiluMul) y[k] = source.x2[row * source.x2_stride + i];
  }
  float r = 0.0f;
  if (source.prologue == Prologue::kRmsNorm) r = NormFactor(from, args.dims.dims, source.norm_eps, fold);
  if (!used) return;
  Extremes e;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    x[k] = lane + k * kWarp < dims ? ApplyPrologue(source.prologue, x[k], y[k], r) : 0.0f;
    e.max_abs_bits = max(e.max_abs_bits, FloatToBits(x[k]) & 0x7fffffffu);
  }
  e.max_abs_bits = __reduce_max_sync(kAllLanes, e.max_abs_bits);
  const ScopeQuantizer quantizer(args.params, e);
  uint8_t* codes = args.codes + row * args.dims.padded + chunk * args.dims.chunk_stride;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (lane + k * kWarp >= args.dims.chunk_padded(chunk)) continue;
    codes[lane + k * kWarp] = lane + k * kWarp < dims ? quantizer.Code(args.params, x[k]) : uint8_t{0};
  }
  if (lane == 0) {
    args.scales[chunk * args.rows + row] = quantizer.scale;
    if (!quantizer.finite) args.reporter.Report();
  }
}

}  // namespace

bool BatchQuantizes(const ScOperator& op, const ScDims& dims) {
  return op.code == ScCode::kSignMagnitude && op.config.granularity == ScGranularity::kPerRow &&
         op.config.group_a == 1 && dims.chunk_d <= kMaxChunkDims;
}

ScActivationView LaunchBatchQuantize(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t rows,
                                     int64_t cols, const ScOperator& op, const FiniteReporter& reporter) {
  QuantizeArgs args;
  args.source = source;
  args.dims = MakeScDims(cols, op.config.chunk_d);
  args.params = {op.code, op.q_max, 1};
  args.rows = rows;
  args.codes = scratch.Take<uint8_t>(rows * args.dims.padded);
  args.scales = scratch.Take<float>(rows * args.dims.chunks);
  args.reporter = reporter;
  LaunchOverlapped(ctx, BatchQuantizeKernel,
                   dim3(static_cast<unsigned>((args.dims.chunks + kChunks - 1) / kChunks), static_cast<unsigned>(rows)),
                   dim3(kThreads), size_t{0}, args);
  return ScActivationView{args.dims, rows, args.codes, args.scales};
}

}  // namespace stoch::cuda
