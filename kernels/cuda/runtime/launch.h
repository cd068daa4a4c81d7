// SPDX-License-Identifier: Apache-2.0
// Kernel launches that may start before the kernels ahead of them have finished (programmatic dependent launch).
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/gpu_probe.h"

namespace stoch::cuda {

#if defined(__CUDACC__)
// Waits until every kernel ahead in the stream has finished and its writes are visible.
// Requires: called by every thread of a kernel launched with LaunchOverlapped, before it touches anything but weights
//           and tables. A kernel of a plain launch passes at once.
__device__ __forceinline__ void WaitForPrevious() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel of the stream start as soon as every block of this one has come here.
__device__ __forceinline__ void StartNext() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Has an address of global memory made here and not, as the compiler likes to, where it is used: behind a wait.
template <typename T>
__device__ __forceinline__ void MakeHere(T*& address) {
  size_t global = __cvta_generic_to_global(address);
  asm volatile("" : "+l"(global));
  address = static_cast<T*>(__cvta_global_to_generic(global));
}

// Asks for the 128 bytes around an address to be brought into the L2; returns at once.
__device__ __forceinline__ void PrefetchL2Line(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}

// Raises the limit of dynamic shared memory of `kernel` to what a launch of it asks for.
// Errors: DeviceError where a device of ctx.traits would refuse the launch: this one, or one with less
//         (GpuTraits::is_limited).
inline void AllowShared(const DeviceContext& ctx, const void* kernel, size_t bytes) {
  if (ctx.traits.is_limited) CheckSharedLimit(ctx.traits, kernel, bytes);
  STOCH_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}
template <typename... Params>
void AllowShared(const DeviceContext& ctx, void (*kernel)(Params...), size_t bytes) {
  AllowShared(ctx, reinterpret_cast<const void*>(kernel), bytes);
}

// Launches `kernel`, which calls WaitForPrevious itself, so that it can be on the GPU before its turn comes. Where the
// code has no such waits a plain launch.
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
