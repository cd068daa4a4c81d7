// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/runtime/bandwidth.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 8;
constexpr int kRepeats = 5;

// Streams through `data` once. The sum keeps the compiler from removing the loads; the buffer is zeroed, so `sink` is
// never written. Grid-stride loop of kLoads loads per thread.
__global__ void __launch_bounds__(kThreads) ReadKernel(const uint4* data, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i + (kLoads - 1) * stride < count;
       i += kLoads * stride) {
    uint4 v[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) v[k] = __ldcs(data + i + k * stride);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) sum |= v[k].x | v[k].y | v[k].z | v[k].w;
  }
  if (sum != 0) *sink = sum;
}

}  // namespace

double MeasureReadBandwidth(DeviceContext& ctx) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  STOCH_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  const int blocks = ctx.traits.sm_count * 4;
  const int64_t unit = static_cast<int64_t>(blocks) * kThreads * kLoads * static_cast<int64_t>(sizeof(uint4));
  const int64_t units = std::max<int64_t>(1, std::min(int64_t{1} << 30, static_cast<int64_t>(free_bytes / 4)) / unit);
  const Buffer buffer = AllocateDevice(ctx.device, static_cast<size_t>(units * unit));
  const Buffer sink = AllocateDevice(ctx.device, sizeof(uint32_t));
  STOCH_CUDA(cudaMemsetAsync(buffer.data(), 0, buffer.bytes(), ctx.stream));
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  STOCH_CUDA(cudaEventCreate(&start));
  STOCH_CUDA(cudaEventCreate(&stop));
  float best_ms = 0;
  for (int i = 0; i < kRepeats; ++i) {
    STOCH_CUDA(cudaEventRecord(start, ctx.stream));
    ReadKernel<<<blocks, kThreads, 0, ctx.stream>>>(static_cast<const uint4*>(buffer.data()),
                                                    static_cast<int64_t>(buffer.bytes() / sizeof(uint4)),
                                                    static_cast<uint32_t*>(sink.data()));
    STOCH_CUDA_LAUNCH("ReadKernel");
    STOCH_CUDA(cudaEventRecord(stop, ctx.stream));
    STOCH_CUDA(cudaEventSynchronize(stop));
    float ms = 0;
    STOCH_CUDA(cudaEventElapsedTime(&ms, start, stop));
    if (i > 0) best_ms = best_ms == 0 ? ms : std::min(best_ms, ms);  // run 0 is a warm-up, not counted
  }
  STOCH_CUDA(cudaEventDestroy(start));
  STOCH_CUDA(cudaEventDestroy(stop));
  return static_cast<double>(buffer.bytes()) / (static_cast<double>(best_ms) * 1e-3);
}

}  // namespace stoch::cuda
