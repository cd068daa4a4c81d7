// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/baseline/experts.h"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * kWarp;
constexpr int kBlocksPerSm = 2;
constexpr int kVector = 8;                  // halves in a 16-byte load
constexpr int kStepCols = kWarp * kVector;  // columns that a load of one warp covers
constexpr int kRing = 8;                    // loads of a lane in flight, in a ring of registers
constexpr int kRingCols = kRing * kStepCols;
constexpr int64_t kMaxGridY = 32768;  // slots per launch; gridDim.y is limited to 65535

struct SlotArgs {
  HalfExpertCall call;
  int64_t first_slot = 0;  // slot of blockIdx.y = 0 in this launch
  int cols = 0;
  int padded_cols = 0;  // cols rounded up to a multiple of kRingCols; columns past cols are 0
  int rows = 0;
  bool is_aligned = true;  // rows of the weights begin at multiples of 16 bytes
  SiteReporter reporter;
};

// Stages the activations f(x) of a row in shared memory `to` as halves (f is the prologue), and reports values that are
// not finite. fold: [kWarps] scratch. Called by all threads; the caller puts a barrier after it.
template <Prologue P>
__device__ __forceinline__ void StageRow(const SlotArgs& args, int64_t row, __half* to, float* fold) {
  const RowSource& source = args.call.source;
  const float* x = source.x + row * source.x_stride;
  const float* x2 = P == Prologue::kSiluMul ? source.x2 + row * source.x2_stride : nullptr;
  float r = 0.0f;
  if constexpr (P == Prologue::kRmsNorm) {
    float squares = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < args.cols; i += kThreads) squares = Fma(x[i], x[i], squares);
#pragma unroll
    for (int s = kWarp / 2; s > 0; s /= 2) squares = squares + __shfl_xor_sync(kAllLanes, squares, s);
    if (threadIdx.x % kWarp == 0) fold[threadIdx.x / kWarp] = squares;
    __syncthreads();
    float sum = fold[threadIdx.x % kWarps];
#pragma unroll
    for (int s = kWarps / 2; s > 0; s /= 2) sum = sum + __shfl_xor_sync(kAllLanes, sum, s);
    r = rsqrtf(sum / static_cast<float>(args.cols) + source.norm_eps);
  }
  bool finite = true;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < args.padded_cols; i += kThreads) {
    const float value = i < args.cols ? PrologueValue<P>(source, x, x2, r, i) : 0.0f;
    finite = finite && IsFinite(value);
    to[i] = __float2half_rn(value);
  }
  if (!finite) args.reporter.Report();
}

// Multiplies one slot's activations with the matrices of its expert. Grid: blockIdx.y is a slot. The blocks of a slot
// divide the rows of all its expert's matrices; a warp computes one row at a time.
template <Prologue P>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) HalfExpertKernel(const __grid_constant__ SlotArgs args) {
  extern __shared__ __align__(16) __half xs[];  // [padded_cols] activations
  __shared__ float fold[kWarps];
  __shared__ const uint16_t* weights[kMaxScTasks];
  const HalfExpertCall& call = args.call;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t slot = args.first_slot + blockIdx.y;
  const int stride = static_cast<int>(gridDim.x) * kWarps;
  const int total = call.count * args.rows;
  StartNext();
  WaitForPrevious();
  args.reporter.Begin();
  if (threadIdx.x < static_cast<unsigned>(call.count)) {
    weights[threadIdx.x] = call.tasks[threadIdx.x].views[call.chosen[slot]].data;
  }
  __syncthreads();
  uint4 ring[kRing];
  const auto load = [&](int t, int row, int first) {
    const int col = first + t * kStepCols + lane * kVector;
    ring[t] = make_uint4(0, 0, 0, 0);
    if (row >= total || col >= args.cols) return;
    const uint16_t* from = weights[row / args.rows] + static_cast<int64_t>(row % args.rows) * args.cols + col;
    if (args.is_aligned) {
      ring[t] = LoadStreaming(from);
      return;
    }
    __align__(16) uint16_t halves[kVector] = {};
    for (int i = 0; i < min(kVector, args.cols - col); ++i) halves[i] = from[i];
    ring[t] = *reinterpret_cast<const uint4*>(halves);
  };
  int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  int first = 0;
#pragma unroll
  for (int t = 0; t < kRing; ++t) load(t, row, 0);
  StageRow<P>(args, slot / call.row_slots, xs, fold);
  __syncthreads();
  float acc = 0.0f;
  while (row < total) {
    const bool ends = first + kRingCols >= args.cols;
    const int next_row = ends ? row + stride : row;
    const int next_first = ends ? 0 : first + kRingCols;
#pragma unroll
    for (int t = 0; t < kRing; ++t) {
      if (first + t * kStepCols < args.cols) {
        const uint4 x = *reinterpret_cast<const uint4*>(xs + first + t * kStepCols + lane * kVector);
        const uint32_t x_words[4] = {x.x, x.y, x.z, x.w};
        const uint32_t words[4] = {ring[t].x, ring[t].y, ring[t].z, ring[t].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 a = ToFloat2(x_words[i], __half());
          const float2 w = ToFloat2(words[i], __half());
          acc = Fma(a.x, w.x, acc);
          acc = Fma(a.y, w.y, acc);
        }
      }
      load(t, next_row, next_first);
    }
    if (ends) {
#pragma unroll
      for (int s = kWarp / 2; s > 0; s /= 2) acc = acc + __shfl_xor_sync(kAllLanes, acc, s);
      const HalfExpertTask& task = call.tasks[row / args.rows];
      if (lane == 0) task.out[slot * task.out_stride + row % args.rows] = acc;
      acc = 0.0f;
    }
    row = next_row;
    first = next_first;
  }
}

}  // namespace

void LaunchHalfExperts(DeviceContext& ctx, const HalfExpertCall& call, const SiteReporter& reporter) {
  SlotArgs args;
  args.call = call;
  args.cols = static_cast<int>(call.cols);
  args.padded_cols = static_cast<int>((call.cols + kRingCols - 1) / kRingCols * kRingCols);
  args.rows = static_cast<int>(call.rows);
  args.reporter = reporter;
  const size_t shared = static_cast<size_t>(args.padded_cols) * sizeof(__half);
  args.is_aligned = call.cols % kVector == 0;
  const auto kernel = DispatchPrologue(call.source.prologue, [](auto p) { return HalfExpertKernel<p>; });
  AllowShared(ctx, kernel, shared);
  for (int64_t first = 0; first < call.slots; first += kMaxGridY) {
    args.first_slot = first;
    const int64_t slots = std::min(kMaxGridY, call.slots - first);
    // As many blocks as fit the GPU at once, but no more than have rows.
    const int64_t most = (call.count * call.rows + kWarps - 1) / kWarps;
    const int64_t blocks = std::clamp<int64_t>(kBlocksPerSm * ctx.traits.sm_count / slots, 1, most);
    LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(slots)), dim3(kThreads),
                     shared, args);
  }
}

}  // namespace stoch::cuda
