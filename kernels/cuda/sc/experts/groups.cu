// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/experts/groups.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 1024;

// Sorts slots by expert into tiles (a counting sort), by one block. Dynamic shared memory: counts [experts], then next
// [experts], the index in groups.slots of each expert's next slot.
__global__ void __launch_bounds__(kThreads)
    GroupSlotsKernel(const int32_t* chosen, int slots, int experts, int tile_slots, ExpertGroups groups) {
  extern __shared__ int counts[];
  __shared__ int total;
  int* next = counts + experts;
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < experts; e += kThreads) counts[e] = 0;
  WaitForPrevious();
  __syncthreads();
  for (int s = thread; s < slots; s += kThreads) atomicAdd(&counts[chosen[s]], 1);
  __syncthreads();
  if (thread == 0) {
    int tiles = 0;
    for (int e = 0; e < experts; ++e) {
      next[e] = tiles * tile_slots;
      tiles += (counts[e] + tile_slots - 1) / tile_slots;
    }
    total = tiles;
    *groups.tiles = tiles;
  }
  __syncthreads();
  for (int e = thread; e < experts; e += kThreads) {
    int tile = next[e] / tile_slots;
    for (int left = counts[e]; left > 0; left -= tile_slots, ++tile) {
      groups.experts[tile] = e;
      groups.rows[tile] = min(left, tile_slots);
    }
  }
  for (int i = thread; i < total * tile_slots; i += kThreads) groups.slots[i] = -1;
  __syncthreads();
  for (int s = thread; s < slots; s += kThreads) groups.slots[atomicAdd(&next[chosen[s]], 1)] = s;
}

}  // namespace

ExpertGroups LaunchGroupSlots(DeviceContext& ctx, Scratch& scratch, const int32_t* chosen, int64_t slots,
                              int64_t experts, int64_t max_tiles, int tile_slots) {
  ExpertGroups groups;
  groups.tiles = scratch.Take<int32_t>(1);
  groups.experts = scratch.Take<int32_t>(max_tiles);
  groups.rows = scratch.Take<int32_t>(max_tiles);
  groups.slots = scratch.Take<int32_t>(max_tiles * tile_slots);
  const size_t shared = static_cast<size_t>(2 * experts) * sizeof(int);
  LaunchOverlapped(ctx, GroupSlotsKernel, dim3(1), dim3(kThreads), shared, chosen, static_cast<int>(slots),
                   static_cast<int>(experts), tile_slots, groups);
  return groups;
}

}  // namespace stoch::cuda
