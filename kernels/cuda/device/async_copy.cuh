// SPDX-License-Identifier: Apache-2.0
// Copies from global to shared memory that need no registers (cp.async), from compute capability 8.0 on.
//
// Async: a thread's copies are done when its wait returns; other threads see them after a barrier.
#pragma once

#include <cstdint>

namespace stoch::cuda {

// 16 bytes through the L2 alone, around the L1, which is not coherent. Requires: both 16-byte aligned; `to` is an address
// in shared memory.
__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(from) : "memory");
}
// As above; zeros, and `from` is not read, unless `have`.
__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from, bool have) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(have ? 16 : 0) : "memory");
}
// 4 bytes through the L1.
__device__ __forceinline__ void CopyAsync4(uint32_t to, const void* from, bool have) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(have ? 4 : 0) : "memory");
}

// The copies that this thread issued since the last call form a group.
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Until all groups but the last kPending have arrived.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}
// Until every copy that this thread issued has arrived, in a group or not.
__device__ __forceinline__ void WaitForAllCopies() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

}  // namespace stoch::cuda
