// SPDX-License-Identifier: Apache-2.0
// How a warp of a resident kernel finds its keys and values in the cache: it reads page numbers for many tiles at a
// time, ahead of the loop that loads keys or values.
#pragma once

#include "kernels/cuda/attention/split/parts.cuh"
#include "kernels/cuda/attention/split/resident.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {

// Whether the thermometers of byte j in odd words of keys or values are made by shifts instead of looked up: four of
// sixteen codes, so that neither shared memory nor the ALU is the bottleneck.
template <bool kDirect>
constexpr bool IsShifted(int j) {
  return kDirect && j % 2 == 0;
}

// Returns kv.head_dim - kHeadDim, which is 0, in a way that the compiler cannot see. Or-ing `x & OpaqueZero()` into the
// address of a load makes this load wait for x, and so keeps it after the load of x. Otherwise ptxas issues both loads
// on one scoreboard, and an instruction that needs x waits for the later load.
template <int kHeadDim>
__device__ __forceinline__ uint32_t OpaqueZero(const KvView& kv) {
  auto zero = static_cast<uint32_t>(kv.head_dim - kHeadDim);
  asm volatile("" : "+r"(zero));  // hides the value from the compiler
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

// Prefetches `bytes` bytes from `from` on into L2, both multiples of 16. Called by all lanes of a warp.
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

// As PrefetchL2, for an address that is equal in all lanes. elect.sync picks the lane, which keeps the compiler from
// making a loop over the lanes.
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

// Returns the places, in the cache, of a warp's tiles one after the other. A tile has kParts times 16 positions; tile n
// begins at local position first + n * step, and each part lies in one page. Place::Of(kv, page, slot) is the place of
// a part whose first position is slot `slot` of the page.
//
// Places are read for 32 parts at a time, one per lane, and kept in one register. A load for each tile would share its
// scoreboard with loads of keys and values, and whatever waits for the place would wait for those loads, too. A branch
// with such a load in the loop has the same effect, so the loops of values and of look-ups run over Left() tiles and
// call Refill outside.
template <int kParts, typename Place>
class TilePlaces {
 public:
  __device__ __forceinline__ TilePlaces(const KvView& kv, const Stripes& b, int first, int step)
      : first_(first), step_(step), places_(Fetch(kv, b)) {}
  // Returns how often Next may be called before the next Refill.
  __device__ __forceinline__ int Left() const { return kTiles - taken_; }
  // Returns the place of the next tile: in lanes 0 to 15 the place of its first part, in lanes 16 to 31 the place of
  // its last part. Called by all lanes of a warp.
  __device__ __forceinline__ uint32_t Next() {
    const int part = kParts == 1 ? 0 : static_cast<int>(threadIdx.x >> 4 & 1);
    return __shfl_sync(0xffffffffu, places_, taken_++ * kParts + part);
  }
  // Reads the next places if none is left. Called by all lanes of a warp.
  __device__ __forceinline__ void Refill(const KvView& kv, const Stripes& b) {
    if (Left() > 0) return;
    first_ += kTiles * step_;
    taken_ = 0;
    // A shuffle that changes nothing makes the warp wait for the load here.
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
