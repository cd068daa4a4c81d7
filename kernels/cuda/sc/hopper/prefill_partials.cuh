// SPDX-License-Identifier: Apache-2.0
// Partial sums of the prefill kernel (prefill_wgmma.cuh), in device memory.
#pragma once

#include "kernels/cuda/sc/hopper/prefill_ring.cuh"

namespace stoch::cuda::prefill {

// y of a tile that is cut into pieces passes through device memory, from the block and thread that computed one piece
// to the same block rank and thread of the next piece. PartialOf and FlagOf: this thread's first accumulator, and this
// warp's flag, of tile `rest_tile` of the schedule's rest and block `rank` of a cluster.
__device__ __forceinline__ float* PartialOf(const PrefillArgs& args, int rest_tile, uint32_t rank) {
  return args.partial + (static_cast<int64_t>(rest_tile) * kPrefillCluster + rank) * kAccumulators * kConsumers +
         threadIdx.x;
}
__device__ __forceinline__ int* FlagOf(const PrefillArgs& args, int rest_tile, uint32_t rank) {
  return args.flags + (rest_tile * kPrefillCluster + static_cast<int>(rank)) * (kConsumers / 32) + threadIdx.x / 32;
}

// Waits until this warp's flag says that `pieces` pieces are done (acquire), then loads y.
__device__ inline void LoadPartial(const PrefillArgs& args, int rest_tile, uint32_t rank, int pieces,
                                   float (&y)[kAccumulators]) {
  const int* flag = FlagOf(args, rest_tile, rank);
  int seen;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(seen) : "l"(flag) : "memory");
  } while (seen < pieces);
  const float* from = PartialOf(args, rest_tile, rank);
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i) y[i] = __ldcg(from + i * kConsumers);
}

// Stores y, then sets this warp's flag to `pieces` (release).
__device__ inline void StorePartial(const PrefillArgs& args, int rest_tile, uint32_t rank, int pieces,
                                    const float (&y)[kAccumulators]) {
  float* to = PartialOf(args, rest_tile, rank);
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i) __stcg(to + i * kConsumers, y[i]);
  __threadfence();
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;\n" ::"l"(FlagOf(args, rest_tile, rank)), "r"(pieces) : "memory");
  }
}

}  // namespace stoch::cuda::prefill
