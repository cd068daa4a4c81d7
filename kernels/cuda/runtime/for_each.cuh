// SPDX-License-Identifier: Apache-2.0
// Element-wise work: calls a function object once for each index, one thread per index.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {

inline constexpr int kForEachThreads = 256;

// fn(i) for i < count, one thread per index.
template <typename Fn>
__global__ void __launch_bounds__(kForEachThreads) ForEachKernel(const __grid_constant__ Fn fn, int64_t count) {
  StartNext();
  WaitForPrevious();
  if constexpr (requires { fn.reporter; }) fn.reporter.Begin();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kForEachThreads + threadIdx.x;
  if (i < count) fn(i);
}

// Calls fn(i) on the device for every i in [0, count), in any order. Fn: a copyable type with a __device__ const
// operator(). If it launches the first kernel of an op, Fn has a member `SiteReporter reporter`, and its Begin is
// called.
template <typename Fn>
void LaunchForEach(DeviceContext& ctx, int64_t count, const Fn& fn) {
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>((count + kForEachThreads - 1) / kForEachThreads);
  LaunchOverlapped(ctx, &ForEachKernel<Fn>, dim3(blocks), dim3(kForEachThreads), 0, fn, count);
}

}  // namespace stoch::cuda
