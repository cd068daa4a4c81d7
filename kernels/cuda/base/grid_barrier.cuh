// SPDX-License-Identifier: Apache-2.0
// A grid barrier: all blocks of a running kernel wait for each other.
#pragma once

#include <cstddef>

namespace stoch::cuda {

// A grid barrier over a one-dimensional grid.
// Requires: all blocks of the grid are resident at once: at most one block per SM, and no other kernel with a grid
//           barrier runs on the GPU at the same time (of another backend of this process, or of an MPS client). If
//           kernels overlap by PDL (launch.h), each one calls WaitForPrevious before it uses the barrier.
struct GridBarrier {
  static constexpr size_t kBytes = sizeof(unsigned);
  unsigned* state = nullptr;  // one word in device memory, zeroed before the first use

#if defined(__CUDACC__)
  // Called by all threads of every block; returns when all blocks have called it. Writes before the call are then
  // visible to all blocks if they read with __ldcg (the L1 is not coherent).
  __device__ __forceinline__ void Wait() const {
    Wait([] { __syncthreads(); });
  }
  // Wait for a subset of a block's threads that includes thread 0; sync() is a barrier of that subset.
  template <typename Sync>
  __device__ __forceinline__ void Wait(const Sync& sync) const {
    Await(Arrive(sync), sync);
  }
  // The two halves of Wait: Arrive announces this block, Await waits for all blocks. Work between the two calls does
  // not delay other blocks.
  //
  // Each use of the barrier adds 2^31 to `state` in total, whatever the grid size, so bit 31 flips when the last block
  // arrives. A waiting block polls the word that the arrivals add to; nothing is reset, so there is no second word to
  // wait for. Only thread 0 does the release and the acquire; sync() orders the other threads' writes before the
  // release and their reads after the acquire.
  template <typename Sync>
  __device__ __forceinline__ unsigned Arrive(const Sync& sync) const {
    unsigned before = 0;
    // Bit 31 cannot flip before this block arrives, so its old value may be read ahead of sync(), off the critical
    // path.
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
