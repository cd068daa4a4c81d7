// SPDX-License-Identifier: Apache-2.0
// Waiting for another GPU, which may never come: not for ever.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/handover/row_post.h"

namespace stoch::cuda {

inline constexpr uint64_t kPeerTimeoutNs = 20'000'000'000;
inline constexpr int kLooksBetweenChecks = 4096;  // `failed` is in host memory: to read it takes as long as an exchange

__device__ __forceinline__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// A device that never comes must not hang the others: they note it and go on. `start`: when they began to wait, 0 at
// first. Returns that; 0: not any more.
static __device__ __noinline__ uint64_t WaitOn(uint64_t start, int mark, int* failed) {
  const uint64_t now = Nanoseconds();
  if (start == 0) start = now;
  if (now - start < kPeerTimeoutNs && *static_cast<volatile int*>(failed) == 0) return start;
  *static_cast<volatile int*>(failed) = mark;
  return 0;
}

// How words are waited for that another GPU may post (exchange.cuh).
class PeerPatience {
 public:
  static constexpr bool kAnywhere = true;
  __device__ explicit PeerPatience(const PeerWait& wait) : wait_(wait) {}
  // Asked between two looks; false: they are not coming.
  __device__ __forceinline__ bool MayWait() {
    if (wait_.failed == nullptr || ++looks_ % kLooksBetweenChecks != 0) return true;
    start_ = WaitOn(start_, wait_.mark, wait_.failed);
    return start_ != 0;
  }
  __device__ __forceinline__ void Look(const uint32_t* from, uint32_t& word) const { word = PeekAnywhere(from); }

 private:
  const PeerWait& wait_;
  uint64_t start_ = 0;
  int looks_ = 0;
};

}  // namespace stoch::cuda
