#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/prologue/norm_factor.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/batch/quantize.cuh"
#include "kernels/cuda/sc/batch/quantize.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;
constexpr int kChunks = kThreads / kWarp;  // of a block

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
  ChunkOfRow<1> mine(source, args.dims, row, chunk, 0, lane);
  StartNext();
  if (used) mine.LoadNormWeights();
  WaitForPrevious();
  // Everything is loaded before the norm is known.
  if (used) mine.Load();
  float r = 0.0f;
  if (source.prologue == Prologue::kRmsNorm) {
    r = NormFactor(source.x + row * source.x_stride, args.dims.dims, source.norm_eps, fold);
  }
  if (!used) return;
  uint8_t* codes = args.codes + row * args.dims.padded + chunk * args.dims.chunk_stride;
  const ScopeQuantizer quantizer(args.params, Extremes{mine.MaxAbsBits(r)});
  mine.Codes(args.params, quantizer, [&](int d, uint8_t code) {
    if (d < args.dims.chunk_padded(chunk)) codes[d] = code;
  });
  if (lane == 0) {
    args.scales[chunk * args.rows + row] = quantizer.scale;
    if (!quantizer.finite) args.reporter.Report();
  }
}

}  // namespace

bool BatchQuantizes(const ScOperator& op, const ScDims& dims) {
  return op.code == ScCode::kSignMagnitude && op.config.granularity == ScGranularity::kPerRow &&
         op.config.group_a == 1 && dims.chunk_d <= ChunkOfRow<1>::kMaxDims;
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
