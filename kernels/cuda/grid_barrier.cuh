// A barrier over all blocks of a kernel.
#pragma once

#include <cstddef>

namespace stoch::cuda {

// Requires: every block of the grid gets onto the GPU without another having to leave: at most one block for each
//           multiprocessor, and no other kernel with such a barrier at the same time (another backend of this process
//           or an MPS client on the same GPU). Kernels that overlap (launch.h) use it one after another, after
//           WaitForPrevious. Blocks are numbered along x alone.
struct GridBarrier {
  static constexpr size_t kBytes = sizeof(unsigned);
  unsigned* state = nullptr;  // 0 before the first use

#if defined(__CUDACC__)
  // What: returns in every thread once all blocks have called it; their earlier writes are then visible (read them with
  //       __ldcg: the first-level cache is not coherent).
  __device__ __forceinline__ void Wait() const {
    Wait([] { __syncthreads(); });
  }
  // What: the same for some of a block's threads, thread 0 among them; sync() is a barrier of those.
  //
  // Every barrier adds 2^31 in all, whatever the size of the grid: the top bit flips when the last block arrives, and
  // those that wait see it in the very word that was added to. Nothing is reset, so nobody waits for a second word.
  template <typename Sync>
  __device__ __forceinline__ void Wait(const Sync& sync) const {
    constexpr unsigned kTop = 0x80000000u;
    sync();
    if (threadIdx.x == 0) {
      const unsigned add = blockIdx.x == 0 ? kTop - (gridDim.x - 1) : 1u;
      unsigned before = 0;
      unsigned now = 0;
      // Release and acquire by one thread carry the block's writes and reads: the barriers around order them.
      asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(state), "r"(add) : "memory");
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(state) : "memory");
      } while (((now ^ before) & kTop) == 0);
    }
    sync();
  }
#endif
};

}  // namespace stoch::cuda
