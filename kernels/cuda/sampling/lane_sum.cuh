// SPDX-License-Identifier: Apache-2.0
// Sums of a term of every token in kRowLanes order, by a cluster of blocks.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/sampling/row_scan.cuh"
#include "kernels/math/reduce.h"

namespace stoch::cuda::sampling {

// Shared memory of LaneSum.
template <typename T>
struct LaneSumShared {
  T terms[kThreads];
  T lanes[kRowLanes];  // in every block, all of the cluster's
};

// The sum of term(id) of the ids below `size`, in kRowLanes order. A block owns whole lanes: it computes the terms of
// several of their elements at once, then each lane's thread adds them in order. Every thread of the cluster gets the
// total. Requires: no lane is ever -0; all threads of the cluster call it together.
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
    // +0 adds nothing to a lane, as no lane is -0.
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
