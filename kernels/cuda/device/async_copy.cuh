// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies from global to shared memory that bypass registers (cp.async, compute capability 8.0 and newer).
//
// Async: a thread's copies are complete when its wait function returns; other threads see the data after a block
//        barrier.
#pragma once

#include <cstdint>

namespace stoch::cuda {

// Issues a copy of 16 bytes from global memory `from` to shared address `to`. The copy goes through the L2 and bypasses
// the L1, which is not coherent. Requires: `from` and `to` are 16-byte aligned.
__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(from) : "memory");
}
// CopyAsync16 if `have`; else fills the 16 bytes at `to` with zeros and does not read `from`.
__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from, bool have) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(have ? 16 : 0) : "memory");
}
// Issues a copy of 4 bytes through the L1 if `have`; else fills the 4 bytes at `to` with zeros.
__device__ __forceinline__ void CopyAsync4(uint32_t to, const void* from, bool have) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(have ? 4 : 0) : "memory");
}

// Closes a group: all copies that this thread issued since its last CommitCopies.
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Waits until all groups of this thread except the newest kPending have arrived.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}
// Waits until every copy that this thread issued has arrived, committed to a group or not.
__device__ __forceinline__ void WaitForAllCopies() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

}  // namespace stoch::cuda
