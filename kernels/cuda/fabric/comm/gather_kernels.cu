// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/peer_wait.cuh"
#include "kernels/cuda/fabric/comm/gather_kernels.h"
#include "kernels/cuda/runtime/for_each.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/elementary.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 512;
static_assert(kGatherBlockElements == 4 * kThreads);

// Returns element i of a row of the columns, with the prologue applied. T: float, or float4 for four columns at a time.
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

__device__ __forceinline__ void StoreRelease(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t LoadAcquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// Waits until `flag` has reached `turn`, or until the time limit, after which *failed is 1 + peer. Called by one
// thread.
__device__ void AwaitPeer(const uint32_t* flag, uint32_t turn, int peer, int* failed) {
  uint64_t start = 0;
  for (int looks = 1; static_cast<int32_t>(LoadAcquire(flag) - turn) < 0; ++looks) {
    if (looks % kLooksBetweenChecks == 0 && (start = WaitOn(start, peer + 1, failed)) == 0) return;
  }
}

// Runs a direct exchange on one device. Grid: launch.blocks blocks, equal on every device. Blocks of one index on all
// devices belong together: each stores its piece of its device's columns to the outputs of all devices and, with
// args.waits, waits for the pieces of the others, so that the end of the kernel is the end of the exchange on this
// device. T: float4 if the columns are aligned, else float.
template <typename T>
__global__ void __launch_bounds__(kThreads) DirectGatherKernel(const __grid_constant__ DirectGather args) {
  constexpr int64_t kWidth = sizeof(T) / sizeof(float);
  StartNext();
  WaitForPrevious();
  args.columns.reporter.Begin();
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
    // Fence and release store order what the whole block stored before the barrier ahead of the flag: a peer that
    // acquires the flag sees all these stores.
    __threadfence_system();
    StoreRelease(args.flags[peer] + block * kMaxGroup + args.rank, turn);
    AwaitPeer(args.flags[args.rank] + block * kMaxGroup + peer, turn, peer, args.failed);
  }
  __syncthreads();
  if (threadIdx.x == 0) args.arrived[block] = turn;
}

__device__ __forceinline__ void StorePacket(uint4* to, float x, float y, uint32_t turn) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %3, %2, %3};" ::"l"(to), "r"(__float_as_uint(x)),
               "r"(__float_as_uint(y)), "r"(turn)
               : "memory");
}
__device__ __forceinline__ uint4 LoadPacket(const uint4* from) {
  uint4 p;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(p.x), "=r"(p.y), "=r"(p.z), "=r"(p.w)
               : "l"(from)
               : "memory");
  return p;
}

// Runs an exchange of packets on one device. Grid: `blocks` blocks on every device; a thread moves four numbers. Every
// thread sends and awaits packets, even if its device has fewer columns than others and the packets are zeros. So a
// block that has packets from the blocks of its index on all devices knows that they have read the packets that it sent
// two epochs ago, which its next packets overwrite.
__global__ void __launch_bounds__(kPacketThreads) PacketGatherKernel(const __grid_constant__ PacketGather args) {
  StartNext();
  WaitForPrevious();
  args.columns.reporter.Begin();
  const int64_t at = int64_t{blockIdx.x} * kPacketThreads + threadIdx.x;
  const uint32_t turn = args.arrived[blockIdx.x] + 1;
  const auto place = [&](int device, int from) {
    const int64_t slot = static_cast<int64_t>(turn % 2) * args.devices + from;
    return args.landing[device] + (slot * kMaxGatherBlocks * kPacketThreads + at) * 2;
  };
  const auto put = [&](int from, const float4& value) {
    const int64_t width = args.cols[from] / 4;
    if (at >= args.columns.rows * width) return;
    const int64_t row = args.columns.rows == 1 ? 0 : at / width;
    float* to = args.to + row * args.to_stride + args.begin[from];
    reinterpret_cast<float4*>(to)[at - row * width] = value;
  };
  float4 own = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const int64_t width = args.columns.cols / 4;
  if (at < args.columns.rows * width) {
    const int64_t row = args.columns.rows == 1 ? 0 : at / width;
    own = ValueAt<float4>(args.columns, row, at - row * width);
  }
  for (int d = 0; d < args.devices; ++d) {
    if (d == args.rank) continue;
    uint4* to = place(d, args.rank);
    StorePacket(to, own.x, own.y, turn);
    StorePacket(to + 1, own.z, own.w, turn);
  }
  if (!args.in_place) put(args.rank, own);
  for (int d = 0; d < args.devices; ++d) {
    if (d == args.rank) continue;
    const uint4* from = place(args.rank, d);
    uint4 low = LoadPacket(from);
    uint4 high = LoadPacket(from + 1);
    uint64_t start = 0;
    for (int looks = 1; low.y != turn || low.w != turn || high.y != turn || high.w != turn; ++looks) {
      low = LoadPacket(from);
      high = LoadPacket(from + 1);
      if (looks % kLooksBetweenChecks == 0 && (start = WaitOn(start, d + 1, args.failed)) == 0) break;
    }
    put(d,
        make_float4(__uint_as_float(low.x), __uint_as_float(low.z), __uint_as_float(high.x), __uint_as_float(high.z)));
  }
  __syncthreads();
  if (threadIdx.x == 0) args.arrived[blockIdx.x] = turn;
}

// Polls the columns of a shared row that other GPUs post, and stores them to row.to as floats. One thread per column.
__global__ void __launch_bounds__(kThreads) SettleKernel(const __grid_constant__ SharedRow row) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= row.count || (i >= row.own_begin && i < row.own_end)) return;
  PeerPatience patience(row.wait);
  const auto receive = [&](const uint32_t* from) {
    uint32_t word = PeekAnywhere(from);
    while (word == 0 && patience.MayWait()) word = PeekAnywhere(from);
    return BitsToFloat(word);
  };
  float value = receive(row.words + i);
  if (row.silu_by != nullptr) value = Silu(value) * receive(row.silu_by + i);
  row.to[i] = value;
}

struct ColumnPacker {
  GatherColumns columns;
  float* slab;

  __device__ void operator()(int64_t i) const { slab[i] = ValueAt<float>(columns, i / columns.cols, i % columns.cols); }
};

struct ColumnUnpacker {
  const float* slab;
  int64_t cols;
  float* to;
  int64_t to_stride;

  __device__ void operator()(int64_t i) const { to[i / cols * to_stride + i % cols] = slab[i]; }
};

unsigned Blocks(int64_t elements) { return static_cast<unsigned>((elements + kThreads - 1) / kThreads); }

}  // namespace

void LaunchDirectGather(DeviceContext& ctx, const DirectGather& args, const GatherLaunch& launch) {
  const auto kernel = launch.route == GatherRoute::kVectors ? DirectGatherKernel<float4> : DirectGatherKernel<float>;
  LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(launch.blocks)), dim3(kThreads), 0, args);
}

void LaunchPacketGather(DeviceContext& ctx, const PacketGather& args, int blocks) {
  LaunchOverlapped(ctx, PacketGatherKernel, dim3(static_cast<unsigned>(blocks)), dim3(kPacketThreads), 0, args);
}

void LaunchSettleRow(const SharedRow& row, cudaStream_t stream) {
  SettleKernel<<<Blocks(row.count), kThreads, 0, stream>>>(row);
  STOCH_CUDA_LAUNCH("SettleKernel");
}

void LaunchPackColumns(DeviceContext& ctx, const GatherColumns& columns, float* slab) {
  LaunchForEach(ctx, columns.rows * columns.cols, ColumnPacker{columns, slab});
}

void LaunchUnpackColumns(DeviceContext& ctx, const float* slab, int64_t rows, int64_t cols, float* to,
                         int64_t to_stride) {
  LaunchForEach(ctx, rows * cols, ColumnUnpacker{slab, cols, to, to_stride});
}

}  // namespace stoch::cuda
