// SPDX-License-Identifier: Apache-2.0
// Launches of kernels that may start before the earlier kernels of the stream have finished (PDL, programmatic
// dependent launch).
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/gpu_probe.h"

namespace stoch::cuda {

#if defined(__CUDACC__)
// Waits until all earlier kernels of the stream have finished and their writes are visible. In a kernel that was
// launched without PDL, returns at once.
// Requires: called by every thread of a kernel launched with LaunchOverlapped, before it accesses anything but weights
//           and tables.
__device__ __forceinline__ void WaitForPrevious() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Allows the next kernel of the stream to start when every block of this kernel has called StartNext or ended.
__device__ __forceinline__ void StartNext() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Makes the compiler compute an address of global memory at this point. Otherwise the compiler may move the computation
// to its first use, which is after a wait.
template <typename T>
__device__ __forceinline__ void MakeHere(T*& address) {
  size_t global = __cvta_generic_to_global(address);
  asm volatile("" : "+l"(global));
  address = static_cast<T*>(__cvta_global_to_generic(global));
}

// Prefetches the 128-byte line around an address into the L2. Does not block.
__device__ __forceinline__ void PrefetchL2Line(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}

// Raises the kernel's limit of dynamic shared memory to `bytes`, the amount of the launch that follows.
// Errors: DeviceError if a device with ctx.traits would refuse the launch: the actual device, or the smaller one that
//         tests pretend to have (GpuTraits::is_limited).
inline void AllowShared(const DeviceContext& ctx, const void* kernel, size_t bytes) {
  if (ctx.traits.is_limited) CheckSharedLimit(ctx.traits, kernel, bytes);
  STOCH_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}
template <typename... Params>
void AllowShared(const DeviceContext& ctx, void (*kernel)(Params...), size_t bytes) {
  AllowShared(ctx, reinterpret_cast<const void*>(kernel), bytes);
}

// Launches `kernel` with PDL, so that its blocks can be resident before the earlier kernels of the stream have
// finished; the kernel must call WaitForPrevious. A plain launch if the code that runs was compiled without PDL (before
// sm_90).
template <typename... Params, typename... Args>
void LaunchOverlapped(DeviceContext& ctx, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                      Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = ctx.stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = ctx.traits.has_hopper_code ? 1 : 0;
  STOCH_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}
#endif

}  // namespace stoch::cuda
