// SPDX-License-Identifier: Apache-2.0
// Where a warp of a resident block finds its keys and values, ahead of the loop that loads them.
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

// 0, which neither nvcc nor ptxas knows. Or-ing `x & OpaqueZero()` into the address of a load makes the load wait for x, and
// keeps it after the load of x: otherwise ptxas issues both on one scoreboard, and whoever needs x waits for the later load.
template <int kHeadDim>
__device__ __forceinline__ uint32_t OpaqueZero(const KvView& kv) {
  auto zero = static_cast<uint32_t>(kv.head_dim - kHeadDim);
  asm volatile("" : "+r"(zero));  // stays in a register
  return zero;
}

template <int kOffset = 0>
__device__ __forceinline__ uint32_t LoadSharedWord(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1+%2];" : "=r"(v) : "r"(address), "n"(kOffset));
  return v;
}

__device__ __forceinline__ void StoreSharedShort(uint32_t address, int32_t v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(static_cast<int16_t>(v)) : "memory");
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

// For an address that is equal in all lanes, which spares the compiler's loop over the lanes.
template <int kBytes>
__device__ __forceinline__ void PrefetchL2OfWarp(const void* from) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\n@p cp.async.bulk.prefetch.L2.global [%0], %1;\n}" ::"l"(from),
      "n"(kBytes)
      : "memory");
#else
  PrefetchL2(from, kBytes);
#endif
}

// Where a warp's tiles are, in turn: kParts times 16 positions, each of which are in one page; tile n is at local position
// first + n * step. Place::Of(kv, page, slot) is a part's place, whose first position is `slot` of the page.
//
// They are read 32 at a time and wait in the lanes of a register: a load a tile would share its scoreboard with loads of
// keys and values, and whoever waits for the place would wait for those. So would a branch around such a load: loops run
// over Left() tiles, and refill outside.
template <int kParts, typename Place>
class TilePlaces {
 public:
  __device__ __forceinline__ TilePlaces(const KvView& kv, const Stripes& b, int first, int step)
      : first_(first), step_(step), places_(Fetch(kv, b)) {}
  // Calls of Next until the next Refill.
  __device__ __forceinline__ int Left() const { return kTiles - taken_; }
  // That of the next tile, for lanes 0 to 15 of its first part and lanes 16 to 31 of its last. All lanes of the warp.
  __device__ __forceinline__ uint32_t Next() {
    const int part = kParts == 1 ? 0 : static_cast<int>(threadIdx.x >> 4 & 1);
    return __shfl_sync(0xffffffffu, places_, taken_++ * kParts + part);
  }
  // Where none is left. All lanes of the warp.
  __device__ __forceinline__ void Refill(const KvView& kv, const Stripes& b) {
    if (Left() > 0) return;
    first_ += kTiles * step_;
    taken_ = 0;
    // Waited for here, by a shuffle that changes nothing.
    places_ = __shfl_sync(0xffffffffu, Fetch(kv, b), static_cast<int>(threadIdx.x & 31));
  }

 private:
  static constexpr int kTiles = 32 / kParts;
  __device__ __forceinline__ uint32_t Fetch(const KvView& kv, const Stripes& b) const {
    const int lane = static_cast<int>(threadIdx.x & 31);
    const int i = first_ + lane / kParts * step_ + lane % kParts * kGroupDims;
    const int t = min(b.Token(i), b.row.length - 1) & ~(kGroupDims - 1);
    return Place::Of(kv, __ldg(b.pages + (t >> kv.page_shift)), t & (kv.page_tokens - 1));
  }

  int first_;
  int step_;
  int taken_ = 0;
  uint32_t places_;
};

}  // namespace stoch::cuda
