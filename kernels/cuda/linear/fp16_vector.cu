// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/linear/fp16.h"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * kWarp;
constexpr int kVector = kHalfVectorValues;
constexpr int kStepCols = kWarp * kVector;  // columns of a warp's load
constexpr int kRing = 8;                    // loads in flight of a lane

constexpr int kRingCols = kRing * kStepCols;
constexpr int kStageCols = kThreads * 4;  // columns of x that the block stages at a time

struct Task {
  const uint16_t* weights = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;
  int first_row = std::numeric_limits<int>::max();  // of its rows among those of all tasks
  bool add = false;
};

struct VectorArgs {
  Task tasks[kMaxFp16Tasks];
  int total_rows = 0;  // weight rows of all tasks
  int cols = 0;
  int padded_cols = 0;  // whole rings: x has zeros there, and the main loop nothing to ask
  int rows = 0;
  RowSource source;
  SiteReporter reporter;
};
static_assert(kRingCols % kStageCols == 0 && kRingCols == kHalfVectorCols && kMaxHalfVectorRows == 4);

__device__ __forceinline__ const Task& TaskOf(const VectorArgs& args, int row) {
  int at = 0;
#pragma unroll
  for (int t = 1; t < kMaxFp16Tasks; ++t) at += row >= args.tasks[t].first_row ? 1 : 0;
  return args.tasks[at];
}

__device__ __forceinline__ const uint16_t* RowAt(const VectorArgs& args, int row) {
  const Task& task = TaskOf(args, row);
  return task.weights + static_cast<uint64_t>(static_cast<uint32_t>(row - task.first_row)) * args.cols;
}

// 8 weights, 0 where there are none.
__device__ __forceinline__ uint4 LoadWeights(const uint16_t* from, bool there) {
  uint4 v = make_uint4(0, 0, 0, 0);
  asm volatile(
      "{ .reg .pred there; setp.ne.b32 there, %5, 0;\n"
      "@there ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(from), "r"(static_cast<int>(there)));
  return v;
}

__device__ __forceinline__ float4 Load4(const float* from) { return *reinterpret_cast<const float4*>(from); }

// f of four elements: x and its norm weight or x2.
template <Prologue P>
__device__ __forceinline__ float4 Prologue4(float4 x, float4 y, float r) {
  const auto f = [r](float x1, float y1) {
    // The baseline owes nobody its bits, so SiLU may use the fast instructions.
    return P == Prologue::kSiluMul ? __fdividef(x1, 1.0f + __expf(-x1)) * y1 : ApplyPrologue(P, x1, y1, r);
  };
  return make_float4(f(x.x, y.x), f(x.y, y.y), f(x.z, y.z), f(x.w, y.w));
}

// 1 / sqrt(mean(x^2) + eps) from every thread's part of the sum of squares. Contains a barrier.
__device__ __forceinline__ float NormFactorOf(float squares, int cols, float eps, float* fold) {
  const unsigned lane = threadIdx.x % kWarp;
#pragma unroll
  for (int s = kWarp / 2; s > 0; s /= 2) squares = squares + __shfl_xor_sync(kAllLanes, squares, s);
  if (lane == 0) fold[threadIdx.x / kWarp] = squares;
  __syncthreads();
  float sum = fold[lane % kWarps];
#pragma unroll
  for (int s = kWarps / 2; s > 0; s /= 2) sum = sum + __shfl_xor_sync(kAllLanes, sum, s);
  return rsqrtf(__fdividef(sum, static_cast<float>(cols)) + eps);
}

// f(x) of a row as halves, with zeros up to the padded columns; a barrier makes them visible.
template <Prologue P>
__device__ __forceinline__ void StageRow(const VectorArgs& args, int n, __half* to, float* fold) {
  constexpr int kInFlight = P == Prologue::kSiluMul ? 4 : 2;
  constexpr int kBatch = kInFlight * kStageCols;
  const int own = static_cast<int>(threadIdx.x) * 4;
  const float* x = args.source.x + n * args.source.x_stride + own;
  const float* y =
      (P == Prologue::kSiluMul ? args.source.x2 + n * args.source.x2_stride : args.source.norm_weight) + own;
  float4 xs[kInFlight];
  float4 ys[kInFlight];
  const auto load = [&](int first) {
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int i = first + j * kStageCols;
      const bool there = own + i < args.cols;
      xs[j] = there ? Load4(x + i) : float4{};
      ys[j] = P != Prologue::kNone && there ? Load4(y + i) : float4{};
    }
  };
  float r = 0.0f;
  load(0);
  if constexpr (P == Prologue::kRmsNorm) {
    float squares = 0.0f;
    const auto add = [&](const float4& v) {
      squares = Fma(v.x, v.x, squares) + Fma(v.y, v.y, Fma(v.z, v.z, v.w * v.w));
    };
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) add(xs[j]);
#pragma unroll 1
    for (int i = kBatch; own + i < args.cols; i += kStageCols) add(Load4(x + i));
    r = NormFactorOf(squares, args.cols, args.source.norm_eps, fold);
  }
  float zero = 0.0f;  // not if anything is NaN or infinite
#pragma unroll 1
  for (int first = 0;;) {
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int i = first + j * kStageCols;
      if (i >= args.padded_cols) break;
      const float4 v = Prologue4<P>(xs[j], ys[j], r);
      zero = Fma(v.x, 0.0f, Fma(v.y, 0.0f, Fma(v.z, 0.0f, Fma(v.w, 0.0f, zero))));
      const __half2 halves[2] = {__floats2half2_rn(v.x, v.y), __floats2half2_rn(v.z, v.w)};
      *reinterpret_cast<uint2*>(to + own + i) = *reinterpret_cast<const uint2*>(halves);
    }
    first += kBatch;
    if (first >= args.padded_cols) break;
    load(first);
  }
  if (zero != 0.0f) args.reporter.Report();
}

// Each warp owns whole weight rows, one after another, every gridDim.x * kWarps-th.
template <int kRows>
__global__ void __launch_bounds__(kThreads, 1) Fp16VectorKernel(const __grid_constant__ VectorArgs args) {
  extern __shared__ __align__(16) __half xs[];  // [kRows][padded_cols]
  __shared__ float fold[kWarps];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int stride = static_cast<int>(gridDim.x) * kWarps;
  int row = static_cast<int>(threadIdx.x / kWarp * gridDim.x + blockIdx.x);
  const int lane_col = lane * kVector;
  const int rows = kRows <= 2 ? kRows : args.rows;

  uint4 ring[kRing];
  const uint16_t* current = row < args.total_rows ? RowAt(args, row) + lane_col : nullptr;
  const int first_cols = row < args.total_rows ? args.cols - lane_col : 0;
#pragma unroll
  for (int t = 0; t < kRing; ++t) ring[t] = LoadWeights(current + t * kStepCols, t * kStepCols < first_cols);
  // The norm's weights depend on nobody; of rows up to 16384 all of them.
  constexpr int kLineFloats = 32;
  const int line = static_cast<int>(threadIdx.x) * kLineFloats;
  if (args.source.prologue == Prologue::kRmsNorm && line < args.cols) PrefetchL2Line(args.source.norm_weight + line);
  if (row + stride >= args.total_rows) StartNext();
  WaitForPrevious();
  args.reporter.Begin();
  for (int n = 0; n < rows; ++n) {
    if (n > 0) __syncthreads();  // all have read `fold`
    __half* to = xs + n * args.padded_cols;
    switch (args.source.prologue) {
      case Prologue::kNone: StageRow<Prologue::kNone>(args, n, to, fold); break;
      case Prologue::kRmsNorm: StageRow<Prologue::kRmsNorm>(args, n, to, fold); break;
      case Prologue::kSiluMul: StageRow<Prologue::kSiluMul>(args, n, to, fold); break;
    }
  }
  __syncthreads();
  for (; row < args.total_rows; row += stride) {
    const bool more = row + stride < args.total_rows;
    const uint16_t* next = more ? RowAt(args, row + stride) + lane_col : nullptr;
    // Not earlier: the next kernel's first loads would only take bandwidth from these (measured on an H200).
    if (row + 2 * stride >= args.total_rows) StartNext();
    const Task& task = TaskOf(args, row);
    float* out = task.out + (row - task.first_row);
    float acc[kRows] = {};
    // Early loads of the addends: nothing else would hide their latency at the end.
    float old[kRows] = {};
    if (task.add && lane == 0) {
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
        if (n < rows) old[n] = out[n * task.out_stride];
      }
    }
    for (int first = 0; first < args.padded_cols; first += kRingCols) {
      const bool wrap = first + kRingCols >= args.cols;
      const uint16_t* from = wrap ? next : current + (first + kRingCols);
      const int cols = (wrap ? (more ? args.cols : 0) : args.cols - (first + kRingCols)) - lane_col;
      const __half* x_at = xs + first + lane_col;
#pragma unroll
      for (int t = 0; t < kRing; ++t) {
        if (first + t * kStepCols < args.cols) {
          const uint32_t words[4] = {ring[t].x, ring[t].y, ring[t].z, ring[t].w};
#pragma unroll
          for (int n = 0; n < kRows; ++n) {
            if (n >= rows) break;
            const uint4 x = *reinterpret_cast<const uint4*>(x_at + n * args.padded_cols + t * kStepCols);
            const uint32_t x_words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float2 a = ToFloat2(x_words[i], __half());
              const float2 w = ToFloat2(words[i], __half());
              acc[n] = Fma(a.x, w.x, acc[n]);
              acc[n] = Fma(a.y, w.y, acc[n]);
            }
          }
        }
        ring[t] = LoadWeights(from + t * kStepCols, t * kStepCols < cols);
        __syncwarp();  // keeps the load here: the compiler would wait for the whole ring, then load all of it
      }
    }
    current = next;
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      if (n >= rows) break;
      float y = acc[n];
#pragma unroll
      for (int s = kWarp / 2; s > 0; s /= 2) y = y + __shfl_xor_sync(kAllLanes, y, s);
      if (lane == 0) out[n * task.out_stride] = old[n] + y;
    }
  }
}

}  // namespace

void LaunchFp16Vector(DeviceContext& ctx, const LinearPlan& plan, const RowSource& source, int64_t rows, int64_t cols,
                      const SiteReporter& reporter, const Fp16Task* tasks, int count) {
  VectorArgs args;
  for (int i = 0; i < count; ++i) {
    args.tasks[i] = {tasks[i].weight.data, tasks[i].out.data, tasks[i].out.stride, args.total_rows, tasks[i].out.add};
    args.total_rows += static_cast<int>(tasks[i].weight.rows);
  }
  args.cols = static_cast<int>(cols);
  args.padded_cols = static_cast<int>(HalfVectorCols(cols));
  args.rows = static_cast<int>(rows);
  args.source = source;
  args.reporter = reporter;
  const int blocks = std::min(ctx.traits.sm_count, (args.total_rows + kWarps - 1) / kWarps);
  const auto kernel = rows == 1 ? Fp16VectorKernel<1> : rows == 2 ? Fp16VectorKernel<2> : Fp16VectorKernel<4>;
  const auto shared_bytes = static_cast<size_t>(plan.shared_bytes);
  AllowShared(ctx, kernel, shared_bytes);
  LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), shared_bytes, args);
}

}  // namespace stoch::cuda
