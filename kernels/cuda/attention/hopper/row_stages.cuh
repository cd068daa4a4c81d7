// SPDX-License-Identifier: Apache-2.0
// Prefetches counts and scales into shared memory for the softmax of a block's rows. Included by rows.cu and
// row_codes.cuh.
#pragma once

#include "kernels/cuda/attention/hopper/wide.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/device/shared_address.cuh"

namespace stoch::cuda {

inline constexpr int kRowWarps = 8;             // warps of a block, each with one row of the same tile and head
inline constexpr int kRowEach = 8;              // neighbouring positions that a lane takes at a time
inline constexpr int kRowStep = 32 * kRowEach;  // positions that a warp takes at a time

// Copies the counts and scales of a block's rows to shared memory twice, once for each pass, in stages of kPositions
// positions. Counts are double-buffered: each lane copies the counts that it reads itself, a stage ahead. Scales are
// shared by all warps, which take turns to load them; warps may be up to two stages apart, so scales have three
// buffers.
class RowStages {
 public:
  // Steps of kRowStep positions in a stage.
  static constexpr int kSteps = 4;
  static constexpr int kPositions = kSteps * kRowStep;
  static constexpr uint32_t kCountBuffers = 2;
  static constexpr uint32_t kScaleBuffers = 3;
  struct Scales {
    float k[kPositions];  // in the order of WideScale
    float v[kPositions];
  };
  struct Shared {
    alignas(128) Scales scales[kScaleBuffers];
    uint4 counts[kCountBuffers][kSteps][kRowWarps * 32];
    // mbarriers of each buffer of scales: the copy has arrived; all lanes have read.
    uint64_t have_scales[kScaleBuffers];
    uint64_t are_free[kScaleBuffers];
  };
  // Addresses of this lane's counts and scales in shared memory, at the first of the kSteps steps of a stage.
  struct Stage {
    const uint4* counts;
    const float* k;
    const float* v;
    // Advances to the next step.
    __device__ __forceinline__ void Advance() { counts += kRowWarps * 32, k += kRowStep, v += kRowStep; }
  };

  // Starts the copies of the first stage of positions [begin, end), both multiples of kKeyBlock. counts: count of
  // position 0 of the warp's row; k, v: scales of position 0 of the sequence. Called by all threads of the block;
  // contains a barrier.
  __device__ __forceinline__ RowStages(Shared& shared, const int16_t* counts, const float* k, const float* v, int begin,
                                       int end)
      : shared_(shared), counts_(counts), k_(k), v_(v), begin_(begin), end_(end), next_(begin) {
    if (threadIdx.x == 0) {
      for (uint64_t& barrier : shared.have_scales) BarrierInit(SharedAddress(&barrier), 1);
      for (uint64_t& barrier : shared.are_free) BarrierInit(SharedAddress(&barrier), kRowWarps * 32);
      FenceBarrierInit();
    }
    __syncthreads();
    Ask();
  }

  // Waits for the warp's next stage and returns it; after the last stage comes the first again. Releases the scales of
  // the previous stage. Called by all lanes. Requires: is_last is true exactly for the last call of the warp.
  __device__ __forceinline__ Stage Next(bool is_last) {
    const uint32_t counts = stage_ % kCountBuffers;
    const uint32_t buffer = buffer_;
    const uint32_t phase = phase_;
    WaitForAllCopies();
    __syncwarp();
    BarrierArrive(SharedAddress(&shared_.are_free[buffer == 0 ? kScaleBuffers - 1 : buffer - 1]),
                  stage_ > 0);  // each lane arrives for its own reads: racecheck sees no other order
    ++stage_;
    if (++buffer_ == kScaleBuffers) buffer_ = 0, phase_ ^= 1;
    if (!is_last) Ask();
    BarrierWait(SharedAddress(&shared_.have_scales[buffer]), phase);
    const Scales& scales = shared_.scales[buffer];
    const int of_lane = WideScale(static_cast<int>(threadIdx.x % 32) * kRowEach);
    return {&shared_.counts[counts][0][threadIdx.x], scales.k + of_lane, scales.v + of_lane};
  }

 private:
  // Issues the copies of the next stage.
  __device__ __forceinline__ void Ask() {
    const int t = next_ + static_cast<int>(threadIdx.x % 32) * kRowEach;
    const uint32_t to = SharedAddress(&shared_.counts[stage_ % kCountBuffers][0][threadIdx.x]);
    const int16_t* const from = counts_ + t;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (t < end_ - step * kRowStep) {
        CopyAsync16(to + step * static_cast<uint32_t>(sizeof(shared_.counts[0][0])), from + step * kRowStep);
      }
    }
    if (threadIdx.x % 32 == 0 && stage_ % kRowWarps == threadIdx.x / 32) AskForScales();
    next_ += kPositions;
    if (next_ >= end_) next_ = begin_;
  }
  // Issues the bulk copies of the next stage's scales, once all warps have read the buffer. Called by one lane.
  __device__ __forceinline__ void AskForScales() {
    BarrierWait(SharedAddress(&shared_.are_free[buffer_]), phase_ ^ 1);
    const uint32_t bytes = static_cast<uint32_t>(min(kPositions, end_ - next_)) * uint32_t{sizeof(float)};
    const uint32_t barrier = SharedAddress(&shared_.have_scales[buffer_]);
    BarrierExpect(barrier, 2 * bytes);
    BulkCopy(SharedAddress(shared_.scales[buffer_].k), k_ + next_, bytes, barrier);
    BulkCopy(SharedAddress(shared_.scales[buffer_].v), v_ + next_, bytes, barrier);
  }

  Shared& shared_;
  const int16_t* counts_;
  const float* k_;
  const float* v_;
  int begin_, end_;
  // The stage that is prefetched next: its first position, its number, its buffer of scales, and the parity of that
  // buffer's barriers.
  int next_;
  uint32_t stage_ = 0;
  uint32_t buffer_ = 0;
  uint32_t phase_ = 0;
};

}  // namespace stoch::cuda
