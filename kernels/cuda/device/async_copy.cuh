// SPDX-License-Identifier: Apache-2.0
// Copies from global to shared memory that need no registers (cp.async), from compute capability 8.0 on.
//
// Async: a thread's copies are done when its WaitForAsyncCopies returns; other threads see them after a barrier.
#pragma once

#include <cstdint>

namespace stoch::cuda {

// 16 bytes through the L2 alone; zeros unless `have`. Requires: both 16-byte aligned; `from` is not read unless `have`.
__device__ __forceinline__ void CopyAsync16(void* to, const void* from, bool have) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(have ? 16 : 0)
      : "memory");
}

// Until every copy that this thread issued has arrived.
__device__ __forceinline__ void WaitForAsyncCopies() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

}  // namespace stoch::cuda
