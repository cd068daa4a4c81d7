#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/fp16_linear.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_factor.cuh"

namespace stoch::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * kWarp;
constexpr int kMaxRows = 4;
constexpr int kVector = 8;                  // halves of a 16-byte load
constexpr int kStepCols = kWarp * kVector;  // columns of a warp's load
constexpr int kRing = 8;                    // loads in flight of a lane

struct Task {
  const uint16_t* weights = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;
  int first_row = 0;  // of its rows among those of all tasks
  bool add = false;
};

struct VectorArgs {
  Task tasks[kMaxFp16Tasks];
  int task_count = 0;
  int total_rows = 0;  // weight rows of all tasks
  int cols = 0;
  int rows = 0;
  RowSource source;
  FiniteReporter reporter;
};

__device__ __forceinline__ const Task& TaskOf(const VectorArgs& args, int row) {
  int t = 0;
  while (t + 1 < args.task_count && row >= args.tasks[t + 1].first_row) ++t;
  return args.tasks[t];
}

__device__ __forceinline__ const uint16_t* RowAt(const VectorArgs& args, int row) {
  const Task& task = TaskOf(args, row);
  return task.weights + static_cast<int64_t>(row - task.first_row) * args.cols;
}

__device__ __forceinline__ uint4 LoadWeights(const uint16_t* row, int col, int cols) {
  uint4 v = make_uint4(0, 0, 0, 0);
  if (row != nullptr && col < cols) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(row + col));
  }
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

template <Prologue P>
__device__ void StageRow(const VectorArgs& args, int n, __half* to, float* fold) {
  const float* x = args.source.x + n * args.source.x_stride;
  const float* y = P == Prologue::kSiluMul ? args.source.x2 + n * args.source.x2_stride : args.source.norm_weight;
  const float r = P == Prologue::kRmsNorm ? NormFactor(x, args.cols, args.source.norm_eps, fold) : 0.0f;
  bool finite = true;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) * 4; i < args.cols; i += kThreads * 4) {
    const float4 v = Prologue4<P>(Load4(x + i), P == Prologue::kNone ? float4{} : Load4(y + i), r);
    finite = finite && IsFinite(v.x) && IsFinite(v.y) && IsFinite(v.z) && IsFinite(v.w);
    const __half2 halves[2] = {__floats2half2_rn(v.x, v.y), __floats2half2_rn(v.z, v.w)};
    *reinterpret_cast<uint2*>(to + i) = *reinterpret_cast<const uint2*>(halves);
  }
  if (!finite) args.reporter.Report();
}

// Each warp owns whole weight rows, one after another, every gridDim.x * kWarps-th.
template <int kRows>
__global__ void __launch_bounds__(kThreads, 1) Fp16VectorKernel(const __grid_constant__ VectorArgs args) {
  extern __shared__ __align__(16) __half xs[];  // [kRows][cols]
  __shared__ float fold[kRowLanes];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int stride = static_cast<int>(gridDim.x) * kWarps;
  int row = static_cast<int>(threadIdx.x) / kWarp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const int steps = (args.cols + kStepCols - 1) / kStepCols;

  uint4 ring[kRing];
  const uint16_t* current = row < args.total_rows ? RowAt(args, row) : nullptr;
#pragma unroll
  for (int t = 0; t < kRing; ++t) ring[t] = LoadWeights(current, t * kStepCols + lane * kVector, args.cols);
  if (row + stride >= args.total_rows) StartNext();
  WaitForPrevious();
  for (int n = 0; n < args.rows; ++n) {
    if (n > 0) __syncthreads();  // all have read `fold`
    switch (args.source.prologue) {
      case Prologue::kNone: StageRow<Prologue::kNone>(args, n, xs + n * args.cols, fold); break;
      case Prologue::kRmsNorm: StageRow<Prologue::kRmsNorm>(args, n, xs + n * args.cols, fold); break;
      case Prologue::kSiluMul: StageRow<Prologue::kSiluMul>(args, n, xs + n * args.cols, fold); break;
    }
  }
  __syncthreads();
  for (; row < args.total_rows; row += stride) {
    const uint16_t* next = row + stride < args.total_rows ? RowAt(args, row + stride) : nullptr;
    // Not earlier: the next kernel's first loads would only take bandwidth from these (measured on an H200).
    if (row + 2 * stride >= args.total_rows) StartNext();
    float acc[kRows] = {};
    for (int first = 0; first < steps; first += kRing) {
      const bool wrap = first + kRing >= steps;
#pragma unroll
      for (int t = 0; t < kRing; ++t) {
        const uint32_t words[4] = {ring[t].x, ring[t].y, ring[t].z, ring[t].w};
        const int col = (first + t) * kStepCols + lane * kVector;
        ring[t] = wrap ? LoadWeights(next, t * kStepCols + lane * kVector, args.cols)
                       : LoadWeights(current, col + kRing * kStepCols, args.cols);
        if (col >= args.cols) continue;
#pragma unroll
        for (int n = 0; n < kRows; ++n) {
          if (n >= args.rows) break;
          const uint4 x = *reinterpret_cast<const uint4*>(xs + n * args.cols + col);
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
    }
    current = next;
    const Task& task = TaskOf(args, row);
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      if (n >= args.rows) break;
      float y = acc[n];
      for (int s = kWarp / 2; s > 0; s /= 2) y = y + __shfl_xor_sync(kAllLanes, y, s);
      if (lane != 0) continue;
      float* out = task.out + n * task.out_stride + row - task.first_row;
      *out = task.add ? *out + y : y;
    }
  }
}

}  // namespace

bool Fp16VectorSupports(const DeviceContext& ctx, const RowSource& source, int64_t rows, int64_t cols) {
  // Rows of weights and of what is multiplied must start at multiples of 16 bytes.
  const auto aligned = [](const void* at, int64_t stride) {
    return reinterpret_cast<uintptr_t>(at) % 16 == 0 && stride % 4 == 0;
  };
  if (!aligned(source.x, source.x_stride) || !aligned(source.x2, source.x2_stride) || !aligned(source.norm_weight, 0)) {
    return false;
  }
  // x must fit beside the static shared memory.
  return rows <= kMaxRows && cols % kVector == 0 && rows * cols * 2 + 2048 <= ctx.max_shared_bytes;
}

void LaunchFp16Vector(DeviceContext& ctx, const RowSource& source, int64_t rows, int64_t cols,
                      const FiniteReporter& reporter, const Fp16Task* tasks, int count) {
  VectorArgs args;
  for (int i = 0; i < count; ++i) {
    args.tasks[i] = {tasks[i].weight.data, tasks[i].out.data, tasks[i].out.stride, args.total_rows, tasks[i].out.add};
    args.total_rows += static_cast<int>(tasks[i].weight.rows);
  }
  args.task_count = count;
  args.cols = static_cast<int>(cols);
  args.rows = static_cast<int>(rows);
  args.source = source;
  args.reporter = reporter;
  const int blocks = std::min(ctx.sm_count, (args.total_rows + kWarps - 1) / kWarps);
  const auto kernel = rows == 1 ? Fp16VectorKernel<1> : rows == 2 ? Fp16VectorKernel<2> : Fp16VectorKernel<4>;
  const size_t shared_bytes = static_cast<size_t>(rows * cols) * 2;
  STOCH_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), shared_bytes, args);
}

}  // namespace stoch::cuda
