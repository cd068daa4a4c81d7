// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/dispatch.h"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/linear/fixed.h"
#include "kernels/cuda/linear/fixed_kernels.h"
#include "kernels/cuda/linear/fixed_operands.cuh"
#include "kernels/cuda/linear/fixed_screen.h"
#include "kernels/cuda/prologue/norm_factor.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/fixed_point.h"

namespace stoch::cuda {
namespace {

using fixed::FixedArgs;
using fixed::kBlockCols;
using fixed::kBlockSteps;
using fixed::kDigits;
using fixed::kStepCols;
using fixed::kWeightStepBytes;
using fixed::Operand;

// ---- FixedInputKernel: x as operand B of the integer products ----

constexpr int kInputThreads = kRowLanes;  // one thread per lane of RMSNorm's sum (kernels/math/reduce.h)

// Computes f(x) of one row, multiplies it by the row's power of two, rounds it to integers (math/fixed_point.h) and
// writes their digits to `to`. One block per row; blocks beyond `rows` fill the last tile with zeros. Reports NaN and
// infinity.
template <Prologue P>
__global__ void __launch_bounds__(kInputThreads)
    FixedInputKernel(RowSource source, int64_t rows, int64_t cols, Operand to, SiteReporter reporter) {
  __shared__ float fold[kRowLanes];
  __shared__ uint32_t most_of_warps[kInputThreads / kWarp];
  const int64_t row = blockIdx.x;
  const float* x = source.x + row * source.x_stride;
  const float* x2 = P == Prologue::kSiluMul ? source.x2 + row * source.x2_stride : nullptr;
  StartNext();
  WaitForPrevious();
  reporter.Begin();
  const bool have = row < rows;
  float r = 0.0f;
  float scale = 1.0f;
  if (have) {
    if constexpr (P == Prologue::kRmsNorm) r = NormFactor(x, cols, source.norm_eps, fold);
    uint32_t most = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < cols; i += kInputThreads) {
      most = max(most, FloatToBits(PrologueValue<P>(source, x, x2, r, i)) & 0x7fffffffu);
    }
    most = __reduce_max_sync(kAllLanes, most);
    if (threadIdx.x % kWarp == 0) most_of_warps[threadIdx.x / kWarp] = most;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kInputThreads / kWarp; ++w) most = max(most, most_of_warps[w]);
    scale = FixedScale(most, kFixedInputBits);
    if (threadIdx.x == 0) {
      to.units[row] = FixedUnit(scale);
      if (!IsFinite(BitsToFloat(most))) reporter.Report();
    }
  }
  __shared__ unsigned long long squares;
  uint64_t own_squares = 0;
  if (to.norm != nullptr) {
    if (threadIdx.x == 0) squares = 0;
    __syncthreads();
  }
  // A thread writes the eight features that one thread of a quad multiplies in a step of 32.
  const int64_t tile = row / to.tile_rows;
  const int in_tile = static_cast<int>(row % to.tile_rows);
  for (int64_t i = threadIdx.x; i < to.steps * 4; i += kInputThreads) {
    const int64_t step = i / 4;
    const int64_t first = i * 8;
    uint32_t words[kDigits][2] = {};
#pragma unroll
    for (int v = 0; v < 8; ++v) {
      const int64_t d = first + v;
      if (!have || d >= cols) continue;
      int a = __float2int_rn(PrologueValue<P>(source, x, x2, r, d) * scale);
      own_squares += static_cast<uint64_t>(static_cast<int64_t>(a) * a);
#pragma unroll
      for (int digit = 0; digit < kDigits; ++digit) {
        const int low = static_cast<int8_t>(a & 0xff);
        words[digit][v / 4] |= (static_cast<uint32_t>(low) & 0xffu) << 8 * (v % 4);
        a = (a - low) >> 8;
      }
    }
#pragma unroll
    for (int digit = 0; digit < kDigits; ++digit) {
      const int column = to.by_digit ? digit * to.tile_rows + in_tile : in_tile * kDigits + digit;
      if (column >= to.columns) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t at = (((tile * to.steps + step) * 2 + half) * to.columns + column) * 16 + i % 4 * 4;
        *reinterpret_cast<uint32_t*>(to.bytes + at) = words[digit][half];
      }
    }
  }
  if (to.norm == nullptr) return;
  for (int s = kWarp / 2; s > 0; s /= 2) own_squares += __shfl_xor_sync(kAllLanes, own_squares, s);
  if (threadIdx.x % kWarp == 0) atomicAdd(&squares, own_squares);
  __syncthreads();
  if (row != 0 || threadIdx.x != 0) return;
  *to.norm = sqrt(static_cast<double>(squares)) * (1.0 + 0x1p-40);
  *to.best = 0;
}

// ---- FixedVectorKernel: up to kVectorRows rows of x ----

constexpr int kVectorWarps = 4;
constexpr int kVectorThreads = kVectorWarps * kWarp;
constexpr int kVectorWeightRows = FixedWeightView::kGroupRows;

// y = f(x) @ w^T with mma.sync. A block has 16 weight rows; its warps take blocks of kBlockCols columns in turn. Each
// digit of each row of x is one column of operand B, 8 * kTiles columns in all. Weights are read once; the kernel is
// bound by their bytes.
template <typename T, int kTiles>
__global__ void __launch_bounds__(kVectorThreads) FixedVectorKernel(const FixedArgs args) {
  constexpr int kColumns = 8 * kTiles;
  // Each warp's sums of products with the low ([0]) and the high ([1]) bytes of the weights.
  __shared__ int32_t sums[kVectorWarps][2][kVectorWeightRows][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kVectorWeightRows;
  const int blocks = static_cast<int>(args.x.steps / kBlockSteps);
  const auto* weights =
      static_cast<const uint8_t*>(args.w.data) + blockIdx.x * args.x.steps * kWeightStepBytes + lane * 16;
  const float scales[2] = {args.w.scales[first + lane / 4], args.w.scales[first + 8 + lane / 4]};
  uint4 packed[kBlockSteps][2];
  const auto load = [&](int block) {
    if (block >= blocks) return;
#pragma unroll
    for (int step = 0; step < kBlockSteps; ++step) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        packed[step][r] = LoadStreaming(weights + (int64_t{block} * kBlockSteps + step) * kWeightStepBytes +
                                        r * (kWeightStepBytes / 2));
      }
    }
  };
  load(warp);  // weights do not depend on earlier kernels, so they load before WaitForPrevious
  WaitForPrevious();
  int32_t low_sums[kTiles][4] = {};
  int32_t high_sums[kTiles][4] = {};
  // Thread t of a quad reads bytes 4 t .. 4 t + 3 of its quad's column.
  const int8_t* x = args.x.bytes + lane * 4;
  for (int block = warp; block < blocks; block += kVectorWarps) {
    uint32_t low[kBlockSteps][4];
    uint32_t high[kBlockSteps][4];
#pragma unroll
    for (int step = 0; step < kBlockSteps; ++step) {
      fixed::MakeOperands<T>(packed[step], scales, low[step], high[step]);
    }
    load(block + kVectorWarps);
#pragma unroll
    for (int step = 0; step < kBlockSteps; ++step) {
      const int8_t* from = x + (static_cast<int64_t>(block) * kBlockSteps + step) * (kColumns * kStepCols);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint32_t b0 = *reinterpret_cast<const uint32_t*>(from + tile * 128);
        const uint32_t b1 = *reinterpret_cast<const uint32_t*>(from + kColumns * 16 + tile * 128);
        MmaUnsignedBytes(low_sums[tile], low[step], b0, b1);
        MmaBytes(high_sums[tile], high[step], b0, b1);
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8;
      const int column = tile * 8 + lane % 4 * 2 + i % 2;
      sums[warp][0][row][column] = low_sums[tile][i];
      sums[warp][1][row][column] = high_sums[tile][i];
    }
  }
  __syncthreads();
  const int in_block = static_cast<int>(threadIdx.x) % kVectorWeightRows;
  const int64_t row = first + in_block;
  const int token = static_cast<int>(threadIdx.x) / kVectorWeightRows;
  if (token >= args.rows || row >= args.w.rows) return;
  int64_t sum = 0;
#pragma unroll
  for (int digit = kDigits - 1; digit >= 0; --digit) {
    int32_t low = 0;
    int32_t high = 0;
#pragma unroll
    for (int w = 0; w < kVectorWarps; ++w) {
      low += sums[w][0][in_block][token * kDigits + digit];
      high += sums[w][1][in_block][token * kDigits + digit];
    }
    sum = sum * 256 + low + int64_t{256} * high;
  }
  const float dot = FixedResult(sum, args.x.units[token], FixedUnit(args.w.scales[row]));
  float* to = args.out.data + token * args.out.stride + row;
  const float y = args.out.add ? *to + dot : dot;
  if (!IsFinite(y)) args.reporter.Report();
  *to = y;
}
static_assert(kVectorThreads == kVectorWeightRows * fixed::kVectorRows);
static_assert(kDigits == kFixedDigits && fixed::kVectorRows == kFixedVectorRows && kBlockCols == kFixedBlockCols &&
              fixed::kTileTokens == kFixedTileTokens);

template <int kTiles>
void LaunchVector(DeviceContext& ctx, const FixedArgs& args) {
  const auto blocks = static_cast<unsigned>((args.w.rows + kVectorWeightRows - 1) / kVectorWeightRows);
  const auto kernel =
      args.w.dtype == DType::kF16 ? FixedVectorKernel<__half, kTiles> : FixedVectorKernel<__nv_bfloat16, kTiles>;
  LaunchOverlapped(ctx, kernel, dim3(blocks), dim3(kVectorThreads), 0, args);
}

}  // namespace

void LaunchFixedLinear(DeviceContext& ctx, const LinearPlan& plan, const RowSource& source, int64_t rows,
                       const FixedWeightView& w, const LinearOutput& out, const SiteReporter& reporter) {
  STOCH_CHECK(rows > 0 && w.padded_cols % kBlockCols == 0);
  FixedArgs args;
  args.rows = rows;
  args.w = w;
  args.out = out;
  args.reporter = reporter;
  const bool tiles = plan.route == LinearRoute::kFixedTiles || plan.route == LinearRoute::kFixedWgmma;
  if (plan.route == LinearRoute::kFixedScreen) {
    args.x.norm = w.screen.norm;
    args.x.best = w.screen.best;
  }
  const int column_tiles = static_cast<int>((rows * kDigits + 7) / 8);
  args.x.columns = tiles ? fixed::kTileColumns : column_tiles * 8;
  args.x.tile_rows = plan.tile_tokens;
  args.x.by_digit = tiles;
  args.x.steps = w.padded_cols / kStepCols;
  const int64_t padded_rows = (rows + args.x.tile_rows - 1) / args.x.tile_rows * args.x.tile_rows;
  Scratch scratch(ctx.workspace);
  args.x.bytes = scratch.Take<int8_t>(tiles ? padded_rows * w.padded_cols * kDigits : args.x.columns * w.padded_cols);
  args.x.units = scratch.Take<double>(padded_rows);
  const auto input = DispatchPrologue(source.prologue, [](auto p) { return FixedInputKernel<p>; });
  LaunchOverlapped(ctx, input, dim3(static_cast<unsigned>(padded_rows)), dim3(kInputThreads), 0, source, rows, w.cols,
                   args.x, reporter);
  switch (plan.route) {
    case LinearRoute::kFixedScreen: return fixed::LaunchScreened(ctx, args);
    case LinearRoute::kFixedTiles: return fixed::LaunchFixedTiles(ctx, args);
    case LinearRoute::kFixedWgmma: return fixed::LaunchFixedWgmma(ctx, args);
    default: STOCH_CHECK(plan.route == LinearRoute::kFixedVector);
  }
  switch (column_tiles) {
    case 1: return LaunchVector<1>(ctx, args);
    case 2: return LaunchVector<2>(ctx, args);
    default: return LaunchVector<3>(ctx, args);
  }
}

}  // namespace stoch::cuda
