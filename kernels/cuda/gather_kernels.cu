#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/gather_kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/math/elementary.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int64_t kElementsPerBlock = 4 * kThreads;  // a float4 a thread: more blocks cost more flags than they save
constexpr uint64_t kPeerTimeoutNs = 20'000'000'000;
constexpr int kLooksBetweenChecks = 4096;  // `failed` is in host memory: to read it takes as long as an exchange

// T is float or float4.
template <typename T>
__device__ __forceinline__ T ValueAt(const GatherColumns& columns, int64_t row, int64_t i) {
  const T x = reinterpret_cast<const T*>(columns.from + row * columns.from_stride)[i];
  if (!columns.silu_mul) return x;
  const T y = reinterpret_cast<const T*>(columns.from2 + row * columns.from2_stride)[i];
  if constexpr (sizeof(T) == sizeof(float)) {
    return Silu(x) * y;
  } else {
    return make_float4(Silu(x.x) * y.x, Silu(x.y) * y.y, Silu(x.z) * y.z, Silu(x.w) * y.w);
  }
}

__device__ __forceinline__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
__device__ __forceinline__ void StoreRelease(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t LoadAcquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// Waits until `flag` has come to `turn`. A device that never comes must not hang the others: they note it and go on.
__device__ void AwaitPeer(const uint32_t* flag, uint32_t turn, int peer, int* failed) {
  uint64_t start = 0;
  for (int looks = 1; static_cast<int32_t>(LoadAcquire(flag) - turn) < 0; ++looks) {
    if (looks % kLooksBetweenChecks != 0) continue;
    const uint64_t now = Nanoseconds();
    if (start == 0) start = now;
    if (now - start < kPeerTimeoutNs && *static_cast<volatile int*>(failed) == 0) continue;
    *static_cast<volatile int*>(failed) = peer + 1;
    return;
  }
}

// T is float4 where rows allow it. Blocks of one index on all devices belong together: each moves its piece of the
// columns and waits for the others' pieces, so that the kernel's end is the end of the exchange on this device.
template <typename T>
__global__ void __launch_bounds__(kThreads) DirectGatherKernel(const __grid_constant__ DirectGather args) {
  constexpr int64_t kWidth = sizeof(T) / sizeof(float);
  StartNext();
  WaitForPrevious();
  const int block = static_cast<int>(blockIdx.x);
  const GatherColumns& columns = args.columns;
  const int64_t width = columns.cols / kWidth;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t at = static_cast<int64_t>(block) * kThreads + threadIdx.x; at < columns.rows * width; at += step) {
    const int64_t row = columns.rows == 1 ? 0 : at / width;
    const int64_t i = at - row * width;
    const T value = ValueAt<T>(columns, row, i);
    for (int d = 0; d < args.devices; ++d) {
      if (args.to[d] == nullptr || (d == args.rank && args.in_place)) continue;
      reinterpret_cast<T*>(args.to[d] + row * args.to_stride[d])[i] = value;
    }
  }
  if (!args.waits) return;
  const uint32_t turn = args.arrived[block] + 1;
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < args.devices && peer != args.rank) {
    // The release makes what the whole block stored before the barrier visible with it.
    __threadfence_system();
    StoreRelease(args.flags[peer] + block * kMaxGroup + args.rank, turn);
    AwaitPeer(args.flags[args.rank] + block * kMaxGroup + peer, turn, peer, args.failed);
  }
  __syncthreads();
  if (threadIdx.x == 0) args.arrived[block] = turn;
}

__global__ void __launch_bounds__(kThreads) PackKernel(GatherColumns columns, float* slab) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= columns.rows * columns.cols) return;
  slab[at] = ValueAt<float>(columns, at / columns.cols, at % columns.cols);
}

__global__ void __launch_bounds__(kThreads)
    UnpackKernel(const float* slab, int64_t rows, int64_t cols, float* to, int64_t to_stride) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at < rows * cols) to[at / cols * to_stride + at % cols] = slab[at];
}

bool IsAligned(const void* pointer, int64_t stride, int64_t rows) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(float4) == 0 && (rows <= 1 || stride % 4 == 0);
}

bool TakesVectors(const DirectGather& args) {
  const GatherColumns& columns = args.columns;
  bool aligned = columns.cols % 4 == 0 && IsAligned(columns.from, columns.from_stride, columns.rows) &&
                 (!columns.silu_mul || IsAligned(columns.from2, columns.from2_stride, columns.rows));
  for (int d = 0; d < args.devices; ++d) {
    if (args.to[d] != nullptr) aligned = aligned && IsAligned(args.to[d], args.to_stride[d], columns.rows);
  }
  return aligned;
}

unsigned Blocks(int64_t elements) { return static_cast<unsigned>((elements + kThreads - 1) / kThreads); }

}  // namespace

int GatherBlocks(int64_t elements) {
  return static_cast<int>(
      std::clamp<int64_t>((elements + kElementsPerBlock - 1) / kElementsPerBlock, 1, kMaxGatherBlocks));
}

void LaunchDirectGather(DeviceContext& ctx, const DirectGather& args, int blocks) {
  const auto kernel = TakesVectors(args) ? DirectGatherKernel<float4> : DirectGatherKernel<float>;
  LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, args);
}

void LaunchPackColumns(DeviceContext& ctx, const GatherColumns& columns, float* slab) {
  if (columns.rows * columns.cols == 0) return;
  PackKernel<<<Blocks(columns.rows * columns.cols), kThreads, 0, ctx.stream>>>(columns, slab);
  STOCH_CUDA_LAUNCH("PackKernel");
}

void LaunchUnpackColumns(DeviceContext& ctx, const float* slab, int64_t rows, int64_t cols, float* to,
                         int64_t to_stride) {
  if (rows * cols == 0) return;
  UnpackKernel<<<Blocks(rows * cols), kThreads, 0, ctx.stream>>>(slab, rows, cols, to, to_stride);
  STOCH_CUDA_LAUNCH("UnpackKernel");
}

}  // namespace stoch::cuda
