// SPDX-License-Identifier: Apache-2.0
// Sums over the tokens of a row by a cluster of blocks, in the order of kRowLanes lanes (kernels/math/reduce.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/sampling/row_scan.cuh"
#include "kernels/math/reduce.h"

namespace stoch::cuda::sampling {

// Shared memory of LaneSum, in every block of the cluster.
template <typename T>
struct LaneSumShared {
  T terms[kThreads];
  T lanes[kRowLanes];  // lane sums, gathered from all blocks of the cluster
};

// Returns the sum of term(id) over the ids below `size`, in the order of kRowLanes lanes, in every thread of the
// cluster. A block owns whole lanes: all its threads compute terms, and then one thread of each lane adds the lane's
// terms in ascending order of id. Requires: no lane is ever -0. Called by all threads of the cluster together.
template <typename T, typename Term>
__device__ T LaneSum(int32_t size, LaneSumShared<T>& shared, const Term& term) {
  const int own_lanes = kRowLanes / Cluster::Size();
  const int at_once = kThreads / own_lanes;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % own_lanes;
  const int element = thread / own_lanes;
  const int first_lane = Cluster::Rank() * own_lanes;
  const int32_t step = kRowLanes * at_once;
  T sum = 0;
  for (int32_t first = 0; first < size; first += step) {
    const int32_t id = first + element * kRowLanes + first_lane + lane;
    // A missing element is +0, which leaves the lane as it is because no lane is -0.
    shared.terms[thread] = id < size ? term(id) : T{0};
    __syncthreads();
    if (element == 0) {
      for (int i = 0; i < at_once; ++i) sum = sum + shared.terms[i * own_lanes + lane];
    }
    __syncthreads();
  }
  if (element == 0) {
    for (int b = 0; b < Cluster::Size(); ++b) Cluster::At(shared.lanes, b)[first_lane + lane] = sum;
  }
  Cluster::Sync();
  for (int s = kRowLanes / 2; s > 0; s /= 2) {
    if (thread < s) shared.lanes[thread] = shared.lanes[thread] + shared.lanes[thread + s];
    __syncthreads();
  }
  return shared.lanes[0];
}

}  // namespace stoch::cuda::sampling
