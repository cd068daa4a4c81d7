// SPDX-License-Identifier: Apache-2.0
// Access to the other blocks of a thread block cluster.
#pragma once

#include <cooperative_groups.h>

namespace stoch::cuda {

// The blocks of a cluster; a cluster of one where the architecture has none.
struct Cluster {
  __device__ static int Rank() {
#if __CUDA_ARCH__ >= 900
    return static_cast<int>(cooperative_groups::this_cluster().block_rank());
#else
    return 0;
#endif
  }
  __device__ static int Size() {
#if __CUDA_ARCH__ >= 900
    return static_cast<int>(cooperative_groups::this_cluster().num_blocks());
#else
    return 1;
#endif
  }
  // A shared variable as it is in block `rank` (distributed shared memory).
  template <typename T>
  __device__ static T* At(T* shared, int rank) {
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().map_shared_rank(shared, rank);
#else
    return shared;
#endif
  }
  // The two halves of Sync.
  __device__ static void Arrive() {
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().barrier_arrive();
#endif
  }
  __device__ static void Wait() {
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().barrier_wait();
#endif
  }
  // Barrier of all threads of the cluster; orders shared and global memory among them.
  __device__ static void Sync() {
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().sync();
#else
    __syncthreads();
#endif
  }
};

}  // namespace stoch::cuda
