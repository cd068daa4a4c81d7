// SPDX-License-Identifier: Apache-2.0
// Sums over a row of logits by a cluster of blocks, and the token at which a running sum passes a threshold.
//
// Every warp of the cluster has one range of consecutive token ids, in order of (block, warp). So a running sum in id
// order adds up whole warps, and then the lanes of one warp. All sums are of integers, and exact in any order.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/math/sampling.h"

namespace stoch::cuda::sampling {

inline constexpr int kBlocks = 8;     // blocks of a cluster; 1 on GPUs without clusters
inline constexpr int kThreads = 512;  // threads per block; two blocks per SM: 32 rows at once on 132 SMs
inline constexpr int kWarps = kThreads / kWarp;
inline constexpr int kSlots = kBlocks * kWarps;
inline constexpr int kMaxSums = 6;  // most values that one Sum or Max combines

// Shared memory of RowScan, in every block of the cluster.
struct ScanShared {
  uint64_t warp_sums[kWarps][kMaxSums];
  uint64_t block_sums[2][kBlocks][kMaxSums];  // two buffers in turn, so that Combine needs one cluster barrier
  uint64_t slots[kSlots];                     // sums of all warps of the cluster, for Locate
  int32_t found;
};

// A row of logits as one warp of a cluster sees it. All threads of the cluster call each function together.
class RowScan {
 public:
  __device__ RowScan(const float* row, int32_t size, ScanShared& shared) : row_(row), shared_(shared) {
    blocks_ = Cluster::Size();
    slot_ = Cluster::Rank() * kWarps + static_cast<int>(threadIdx.x) / kWarp;
    const int32_t slots = blocks_ * kWarps;
    const int32_t each = ((size + slots - 1) / slots + kWarp - 1) / kWarp * kWarp;
    begin_ = min(size, slot_ * each);
    end_ = min(size, begin_ + each);
    block_begin_ = min(size, Cluster::Rank() * kWarps * each);
    block_end_ = min(size, block_begin_ + kWarps * each);
  }

  __device__ void SetRow(const float* row) { row_ = row; }
  __device__ float logit(int32_t id) const { return row_[id]; }
  // Token ids [block_begin(), block_end()) are those of this block.
  __device__ int32_t block_begin() const { return block_begin_; }
  __device__ int32_t block_end() const { return block_end_; }

  // Calls f(id, logit) for every token id of this warp, a lane for each.
  template <typename F>
  __device__ __forceinline__ void ForEach(F&& f) const {
    constexpr int kInFlight = 8;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int32_t first = begin_; first < end_; first += kInFlight * kWarp) {
      float logits[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int32_t id = first + i * kWarp + lane;
        logits[i] = id < end_ ? row_[id] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int32_t id = first + i * kWarp + lane;
        if (id < end_) f(id, logits[i]);
      }
    }
  }

  // Combines the values of all threads of the cluster, by sum or by maximum, and gives the result to every thread.
  template <int N>
  __device__ void Sum(uint64_t (&values)[N]) {
    Combine(values, [](uint64_t a, uint64_t b) { return a + b; });
  }
  template <int N>
  __device__ void Max(uint64_t (&values)[N]) {
    Combine(values, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  }

  // Returns, in every thread of the cluster, the first id at which the running sum of measure(id, logit), in id order,
  // exceeds threshold(total). Requires: the threshold is below the total.
  template <typename Measure, typename Threshold>
  __device__ int32_t Locate(Measure&& measure, Threshold&& threshold) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    uint64_t sum = 0;
    ForEach([&](int32_t id, float logit) { sum += measure(id, logit); });
    sum = WarpSum(sum);
    if (lane < blocks_) Cluster::At(shared_.slots, lane)[slot_] = sum;
    Cluster::Sync();
    uint64_t total = 0, before = 0;
    for (int s = lane; s < blocks_ * kWarps; s += kWarp) {
      const uint64_t other = shared_.slots[s];
      total += other;
      before += s < slot_ ? other : 0;
    }
    total = WarpSum(total);
    before = WarpSum(before);
    const uint64_t limit = threshold(total);
    if (before <= limit && limit < before + sum) {  // true in one warp of the cluster
      uint64_t left = limit - before;
      int32_t found = -1;
      for (int32_t first = begin_; first < end_ && found < 0; first += kWarp) {
        const int32_t id = first + lane;
        const uint64_t own = id < end_ ? measure(id, row_[id]) : 0;
        uint64_t running = own;
        for (int s = 1; s < kWarp; s *= 2) {
          const uint64_t other = __shfl_up_sync(kAllLanes, running, s);
          if (lane >= s) running += other;
        }
        const unsigned passed = __ballot_sync(kAllLanes, running > left);
        if (passed != 0) found = first + __ffs(static_cast<int>(passed)) - 1;
        left -= __shfl_sync(kAllLanes, running, kWarp - 1);
      }
      if (lane < blocks_) *Cluster::At(&shared_.found, lane) = found;
    }
    Cluster::Sync();
    return shared_.found;
  }

  __device__ static uint64_t WarpSum(uint64_t value) {
    for (int s = kWarp / 2; s > 0; s /= 2) value += __shfl_xor_sync(kAllLanes, value, s);
    return value;
  }

 private:
  template <int N, typename Op>
  __device__ void Combine(uint64_t (&values)[N], Op&& op) {
    static_assert(N <= kMaxSums);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      for (int s = kWarp / 2; s > 0; s /= 2) values[i] = op(values[i], __shfl_xor_sync(kAllLanes, values[i], s));
      if (lane == 0) shared_.warp_sums[warp][i] = values[i];
    }
    __syncthreads();
    uint64_t(*sums)[kMaxSums] = shared_.block_sums[turn_];
    turn_ ^= 1;
    if (warp == 0) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        uint64_t value = shared_.warp_sums[lane % kWarps][i];
        for (int s = kWarps / 2; s > 0; s /= 2) value = op(value, __shfl_xor_sync(kAllLanes, value, s));
        if (lane < blocks_) Cluster::At(sums, lane)[Cluster::Rank()][i] = value;
      }
    }
    Cluster::Sync();
#pragma unroll
    for (int i = 0; i < N; ++i) {
      values[i] = sums[0][i];
      for (int b = 1; b < blocks_; ++b) values[i] = op(values[i], sums[b][i]);
    }
  }

  const float* row_;
  ScanShared& shared_;
  int blocks_ = 1;
  int slot_ = 0;
  int turn_ = 0;
  int32_t begin_ = 0, end_ = 0;
  int32_t block_begin_ = 0, block_end_ = 0;
};

}  // namespace stoch::cuda::sampling
