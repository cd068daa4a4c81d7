// SPDX-License-Identifier: Apache-2.0
// A barrier over all blocks of a kernel.
#pragma once

#include <cstddef>

namespace stoch::cuda {

// Requires: every block of the grid gets onto the GPU without another having to leave: at most one block for each
//           SM, and no other kernel with such a barrier at the same time (another backend of this process
//           or an MPS client on the same GPU). Kernels that overlap (launch.h) use it one after another, after
//           WaitForPrevious. Blocks are numbered along x alone.
struct GridBarrier {
  static constexpr size_t kBytes = sizeof(unsigned);
  unsigned* state = nullptr;  // 0 before the first use

#if defined(__CUDACC__)
  // Returns in every thread once all blocks have called it; their earlier writes are then visible (read them with
  // __ldcg: the first-level cache is not coherent).
  __device__ __forceinline__ void Wait() const {
    Wait([] { __syncthreads(); });
  }
  // As above, for some of a block's threads, thread 0 among them; sync() is a barrier of those.
  template <typename Sync>
  __device__ __forceinline__ void Wait(const Sync& sync) const {
    Await(Arrive(sync), sync);
  }
  // The two halves of Wait: what a block does between them, others do not wait for.
  //
  // Every barrier adds 2^31 in all, whatever the size of the grid: the top bit flips when the last block arrives, and
  // those that wait see it in the very word that was added to. Nothing is reset, so nobody waits for a second word.
  // Release and acquire by one thread carry the block's writes and reads: the barriers around order them.
  template <typename Sync>
  __device__ __forceinline__ unsigned Arrive(const Sync& sync) const {
    unsigned before = 0;
    // The top bit cannot change before this block has arrived, so it may be read first: nobody waits for it here.
    if (threadIdx.x == 0) asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(before) : "l"(state) : "memory");
    sync();
    if (threadIdx.x == 0) {
      const unsigned add = blockIdx.x == 0 ? kTop - (gridDim.x - 1) : 1u;
      asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(state), "r"(add) : "memory");
    }
    return before;
  }
  template <typename Sync>
  __device__ __forceinline__ void Await(unsigned before, const Sync& sync) const {
    if (threadIdx.x == 0) {
      unsigned now = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(state) : "memory");
      } while (((now ^ before) & kTop) == 0);
    }
    sync();
  }

 private:
  static constexpr unsigned kTop = 0x80000000u;
#endif
};

}  // namespace stoch::cuda
