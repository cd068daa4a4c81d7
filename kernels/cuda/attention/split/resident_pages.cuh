// SPDX-License-Identifier: Apache-2.0
// Where a warp of a resident block finds its keys and values, ahead of the loop that wants them.
#pragma once

#include "kernels/cuda/attention/split/parts.cuh"
#include "kernels/cuda/attention/split/resident.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {

// Whether thermometers of odd words of keys or values are made by shifts for byte j: four of sixteen codes in all, so that
// neither shared memory nor the ALU is what everything waits for.
template <bool kDirect>
constexpr bool IsShifted(int j) {
  return kDirect && j % 2 == 0;
}

template <int kOffset = 0>
__device__ __forceinline__ uint32_t LoadSharedWord(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1+%2];" : "=r"(v) : "r"(address), "n"(kOffset));
  return v;
}

// Asks the L2 for `bytes` from `from` on, both multiples of 16. All lanes of a warp.
__device__ __forceinline__ void PrefetchL2(const void* from, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %2, 0;\n@p cp.async.bulk.prefetch.L2.global [%0], %1;\n}" ::"l"(from),
               "r"(bytes), "r"(threadIdx.x & 31)
               : "memory");
#else
  for (int at = static_cast<int>(threadIdx.x & 31) * 128; at < bytes; at += 32 * 128)
    PrefetchL2Line(static_cast<const uint8_t*>(from) + at);
#endif
}

// Pages of a warp's tiles in turn: kParts times 16 positions, each of which are in one page; tile n is at local position
// first + n * step.
//
// They are read 32 at a time and wait in the lanes of a register: a load a tile would share its scoreboard with loads of
// keys and values, and whoever waits for the page would wait for those.
template <int kParts>
class TilePages {
 public:
  __device__ __forceinline__ TilePages(const KvView& kv, const Stripes& b, int first, int step)
      : first_(first), step_(step), pages_(Fetch(kv, b)) {}
  // That of the next tile, for lanes 0 to 15 of its first part and lanes 16 to 31 of its last. All lanes of the warp.
  __device__ __forceinline__ int32_t Next(const KvView& kv, const Stripes& b) {
    const int part = kParts == 1 ? 0 : static_cast<int>(threadIdx.x >> 4 & 1);
    if (taken_ == kTiles) {
      taken_ = 0;
      first_ += kTiles * step_;
      // Waited for here, by a shuffle that changes nothing.
      pages_ = __shfl_sync(0xffffffffu, Fetch(kv, b), static_cast<int>(threadIdx.x & 31));
    }
    return __shfl_sync(0xffffffffu, pages_, taken_++ * kParts + part);
  }

 private:
  static constexpr int kTiles = 32 / kParts;
  __device__ __forceinline__ int32_t Fetch(const KvView& kv, const Stripes& b) const {
    const int lane = static_cast<int>(threadIdx.x & 31);
    const int i = first_ + lane / kParts * step_ + lane % kParts * kGroupDims;
    return __ldg(b.pages + (min(b.Token(i), b.row.length - 1) >> kv.page_shift));
  }

  int first_;
  int step_;
  int taken_ = 0;
  int32_t pages_;
};

}  // namespace stoch::cuda
