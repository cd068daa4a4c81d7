// SPDX-License-Identifier: Apache-2.0
// Access to the other blocks of a thread block cluster (distributed shared memory, cluster barrier).
#pragma once

#include <cooperative_groups.h>

namespace stoch::cuda {

// The cluster that this block belongs to. Code compiled for less than sm_90 behaves as a cluster of one block.
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
  // The address, in the shared memory of block `rank`, of the variable `shared` (distributed shared memory).
  template <typename T>
  __device__ static T* At(T* shared, int rank) {
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().map_shared_rank(shared, rank);
#else
    return shared;
#endif
  }
  // The two halves of Sync: arrive at the cluster barrier, then wait for all threads of the cluster. In code for less
  // than sm_90 both do nothing, unlike Sync, so without a cluster the caller needs a block barrier instead.
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
  // Barrier of all threads of the cluster; afterwards each thread sees the others' earlier writes to shared and global
  // memory.
  __device__ static void Sync() {
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().sync();
#else
    __syncthreads();
#endif
  }
};

}  // namespace stoch::cuda
