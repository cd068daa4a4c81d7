// A barrier over all blocks of a kernel.
#pragma once

#include <cstddef>

namespace stoch::cuda {

// Requires: every block of the grid gets onto the GPU without another having to leave: at most one block for each
//           multiprocessor, and no other kernel with such a barrier at the same time (another backend of this process
//           or an MPS client on the same GPU). Kernels that overlap (launch.h) use it one after another, after
//           WaitForPrevious.
struct GridBarrier {
  static constexpr size_t kBytes = 2 * sizeof(unsigned);
  unsigned* state = nullptr;  // arrived blocks, generation; zero before the first use

#if defined(__CUDACC__)
  // What: returns in every thread once all blocks have called it; their earlier writes are then visible (read them with
  //       __ldcg: the first-level cache is not coherent).
  __device__ __forceinline__ void Wait() const {
    Wait([] { __syncthreads(); });
  }
  // What: the same for some of a block's threads, thread 0 among them; sync() is a barrier of those.
  template <typename Sync>
  __device__ __forceinline__ void Wait(const Sync& sync) const {
    sync();
    if (threadIdx.x == 0) {
      volatile unsigned* generation = state + 1;
      const unsigned before = *generation;
      __threadfence();
      if (atomicAdd(state, 1u) == gridDim.x - 1) {
        *state = 0;
        __threadfence();
        *generation = before + 1;
      } else {
        while (*generation == before) {
        }
      }
      __threadfence();
    }
    sync();
  }
#endif
};

}  // namespace stoch::cuda
