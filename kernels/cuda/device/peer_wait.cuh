// SPDX-License-Identifier: Apache-2.0
// Bounded waits for words that another GPU posts: a GPU that failed must not hang the others.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/handover/row_post.h"

namespace stoch::cuda {

inline constexpr uint64_t kPeerTimeoutNs = 20'000'000'000;
// Polls of a word between two checks of a bounded wait. Checks are rare because `failed` is in host memory, where a
// read takes as long as an exchange.
inline constexpr int kLooksBetweenChecks = 4096;

__device__ __forceinline__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// One check of a bounded wait. start: time of the first check in ns, 0 before it. Returns the start time while waiting
// may go on. Returns 0 after kPeerTimeoutNs, or if another waiter has failed; `mark` is then stored to `failed` and the
// caller continues without the data.
static __device__ __noinline__ uint64_t WaitOn(uint64_t start, int mark, int* failed) {
  const uint64_t now = Nanoseconds();
  if (start == 0) start = now;
  if (now - start < kPeerTimeoutNs && *static_cast<volatile int*>(failed) == 0) return start;
  *static_cast<volatile int*>(failed) = mark;
  return 0;
}

// Policy for ReceiveAll (exchange.cuh): waits with a time limit for words that another GPU may post.
class PeerPatience {
 public:
  static constexpr bool kAnywhere = true;
  __device__ explicit PeerPatience(const PeerWait& wait) : wait_(wait) {}
  // Called between two polls; false if the words are not going to arrive.
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
