// SPDX-License-Identifier: Apache-2.0
// mbarriers in shared memory at which asynchronous copies (async_copy.cuh) arrive, compute capability 8.0 and newer.
// Warps that wait for data, or for a free pipeline stage, need not be at the same program point as the warps that
// arrive.
//
// A barrier runs through phases 0, 1, 2, ...; a phase completes when the number of arrivals given to InitCopyBarrier
// has been reached. `parity` is the parity (0 or 1) of the phase to wait for.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace stoch::cuda {

// Initializes a barrier for `arrivals` arrivals a phase. Called by one thread; a block barrier must follow before use.
__device__ __forceinline__ void InitCopyBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes this thread's arrival happen when all copies that it issued so far are complete. Does not block.
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
