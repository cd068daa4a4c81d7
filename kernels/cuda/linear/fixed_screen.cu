// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/linear/fixed_operands.cuh"
#include "kernels/cuda/linear/fixed_screen.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/fixed_point.h"

namespace stoch::cuda::fixed {
namespace {

constexpr int kGroupRows = FixedWeightView::kGroupRows;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kPickThreads = 256;
constexpr int kPickBlocksPerSm = 2;
constexpr int kPickSteps = 8;                  // steps of 32 columns that a warp loads at once, four lanes a step
constexpr int kPickAhead = 16;                 // loads that a lane keeps in flight
constexpr int kScreenSteps = 2 * kBlockSteps;  // steps whose bytes a lane keeps in flight

// Computes bounds of all outputs from the weights' screen bytes. Writes a lower bound to out[row] and an upper bound to
// uppers[row], and raises screen.best to the largest lower bound. One block per 16 weight rows. The bytes are stored as
// mma.sync operands, so lanes load them without conversion.
__global__ void __launch_bounds__(kThreads) ScreenKernel(const FixedArgs args) {
  constexpr int kColumns = 8;
  __shared__ int32_t sums[kWarps][kGroupRows][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int steps = static_cast<int>(args.x.steps);
  const auto* bytes = args.w.screen.bytes + (blockIdx.x * args.x.steps * kWarp + lane) * 16;
  uint4 ahead[kScreenSteps];
  const auto load = [&](int first) {
#pragma unroll
    for (int k = 0; k < kScreenSteps; ++k) {
      if (first + k < steps) ahead[k] = LoadStreaming(bytes + int64_t{first + k} * (kWarp * 16));
    }
  };
  load(warp * kScreenSteps);  // weights do not depend on earlier kernels, so they load before WaitForPrevious
  WaitForPrevious();
  StartNext();
  int32_t sum[4] = {};
  const int8_t* x = args.x.bytes + lane * 4;
  for (int first = warp * kScreenSteps; first < steps; first += kWarps * kScreenSteps) {
    uint4 now[kScreenSteps];
#pragma unroll
    for (int k = 0; k < kScreenSteps; ++k) now[k] = ahead[k];
    load(first + kWarps * kScreenSteps);
#pragma unroll
    for (int k = 0; k < kScreenSteps; ++k) {
      if (first + k >= steps) break;
      const int8_t* from = x + int64_t{first + k} * (kColumns * kStepCols);
      const uint32_t a[4] = {now[k].x, now[k].y, now[k].z, now[k].w};
      MmaBytes(sum, a, *reinterpret_cast<const uint32_t*>(from),
               *reinterpret_cast<const uint32_t*>(from + kColumns * 16));
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[warp][lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = sum[i];
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kGroupRows + lane;
  uint32_t lowest = 0;
  if (lane < kGroupRows && row < args.w.rows) {
    int64_t middle = 0;
#pragma unroll
    for (int digit = kDigits - 1; digit >= 0; --digit) {
      int32_t of_digit = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) of_digit += sums[w][lane][digit];
      middle = middle * 256 + of_digit;
    }
    middle *= 256;
    const auto rest = static_cast<int64_t>(static_cast<double>(args.w.screen.rests[row]) * *args.w.screen.norm) + 1;
    const double unit = FixedUnit(args.w.scales[row]);
    const float lower = FixedResult(middle - rest, args.x.units[0], unit);
    const float upper = FixedResult(middle + rest, args.x.units[0], unit);
    // A row whose bounds overflow floats gets the upper bound infinity, so PickRowsKernel always computes it.
    const bool is_finite = IsFinite(lower) && IsFinite(upper);
    args.w.screen.uppers[row] = is_finite ? upper : BitsToFloat(0x7f800000u);
    args.out.data[row] = lower;
    if (is_finite) lowest = OrderedWord(lower);
  }
  lowest = __reduce_max_sync(kAllLanes, lowest);
  if (lane == 0 && lowest > Peek(args.w.screen.best)) atomicMax(args.w.screen.best, lowest);
}

__device__ __forceinline__ int DotUnsigned(uint32_t a, uint32_t b, int c) {
  int d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Returns the exact 64-bit dot product, in integers, of one weight row and x. Called by a whole warp; every lane gets
// the result.
template <typename T>
__device__ __forceinline__ int64_t RowSum(const FixedArgs& args, int64_t row) {
  constexpr int kColumns = 8;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int steps = static_cast<int>(args.x.steps);
  const float scale = args.w.scales[row];
  // Four adjacent lanes share a step: lanes 4 k .. 4 k + 3 take steps k, k + 8, ...
  const auto* weights = static_cast<const uint4*>(args.w.data) + args.w.vector_offset(row, 0) + lane % 4;
  int low[kDigits] = {};
  int high[kDigits] = {};
  for (int first = lane / 4; first < steps; first += kPickSteps * kPickAhead) {
    uint4 packed[kPickAhead];
#pragma unroll
    for (int k = 0; k < kPickAhead; ++k) {
      const int step = first + k * kPickSteps;
      packed[k] = step < steps ? __ldg(weights + static_cast<int64_t>(step) * 2 * kWarp) : uint4{};
    }
#pragma unroll
    for (int k = 0; k < kPickAhead; ++k) {
      const int step = first + k * kPickSteps;
      if (step >= steps) break;
      const Bytes bytes = BytesOf<T>(packed[k], scale);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int digit = 0; digit < kDigits; ++digit) {
          const uint32_t x = *reinterpret_cast<const uint32_t*>(
              args.x.bytes + ((static_cast<int64_t>(step) * 2 + half) * kColumns + digit) * 16 + lane % 4 * 4);
          low[digit] = DotUnsigned(bytes.low[half], x, low[digit]);
          high[digit] = __dp4a(static_cast<int>(bytes.high[half]), static_cast<int>(x), high[digit]);
        }
      }
    }
  }
  int64_t sum = 0;
#pragma unroll
  for (int digit = kDigits - 1; digit >= 0; --digit) {
    const int of_low = __reduce_add_sync(kAllLanes, low[digit]);
    const int of_high = __reduce_add_sync(kAllLanes, high[digit]);
    sum = sum * 256 + of_low + int64_t{256} * of_high;
  }
  return sum;
}

// Computes exactly the outputs whose upper bound reaches screen.best, and writes them over their lower bounds. Each
// lane tests one output; its warp then computes the selected ones together. Persistent grid of kPickBlocksPerSm blocks
// per SM.
template <typename T>
__global__ void __launch_bounds__(kPickThreads) PickRowsKernel(const FixedArgs args) {
  WaitForPrevious();
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const uint32_t best = *args.w.screen.best;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (kPickThreads / kWarp);
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * (kPickThreads / kWarp) + threadIdx.x / kWarp;
  for (int64_t first = warp * kWarp; first < args.w.rows; first += warps * kWarp) {
    const int64_t own = first + lane;
    const bool can = own < args.w.rows && OrderedWord(args.w.screen.uppers[own]) >= best;
    for (unsigned left = __ballot_sync(kAllLanes, can); left != 0; left &= left - 1) {
      const int64_t row = first + __ffs(static_cast<int>(left)) - 1;
      const int64_t sum = RowSum<T>(args, row);
      if (lane != 0) continue;
      const float y = FixedResult(sum, args.x.units[0], FixedUnit(args.w.scales[row]));
      if (!IsFinite(y)) args.reporter.Report();
      args.out.data[row] = y;
    }
  }
}

}  // namespace

void LaunchScreened(DeviceContext& ctx, const FixedArgs& args) {
  STOCH_CHECK(args.rows == 1 && !args.out.add && args.w.screen.bytes != nullptr && args.x.columns == 8);
  const auto blocks = static_cast<unsigned>((args.w.rows + kGroupRows - 1) / kGroupRows);
  LaunchOverlapped(ctx, ScreenKernel, dim3(blocks), dim3(kThreads), 0, args);
  const auto pick = args.w.dtype == DType::kF16 ? PickRowsKernel<__half> : PickRowsKernel<__nv_bfloat16>;
  LaunchOverlapped(ctx, pick, dim3(static_cast<unsigned>(kPickBlocksPerSm * ctx.traits.sm_count)), dim3(kPickThreads),
                   0, args);
}

}  // namespace stoch::cuda::fixed
