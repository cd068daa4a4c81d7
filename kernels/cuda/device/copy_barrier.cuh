// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory that copies without registers (async_copy.cuh) arrive at, from compute capability 8.0 on: warps
// that wait for data, or for a place to be free, need not be at the same point as others.
//
// A barrier has phases; a phase is done once all arrivals are there, and `parity` is that of the phase waited for, 0 first.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace stoch::cuda {

// By one thread, before a barrier of the block.
__device__ __forceinline__ void InitCopyBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
// This thread arrives once its copies so far are done.
__device__ __forceinline__ void ArriveWithCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void ArriveAtCopyBarrier(uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void WaitAtCopyBarrier(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@done bra finished;\nbra again;\nfinished:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
      "@done bra finished;\nbra again;\nfinished:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

}  // namespace stoch::cuda
