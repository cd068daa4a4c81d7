// SPDX-License-Identifier: Apache-2.0
// Makes A operands of the int8 products of fixed.h from the 16-bit weights that a lane loads.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/element.cuh"
#include "kernels/math/elementary.h"

namespace stoch::cuda::fixed {

// The bytes of the integers of eight weights of one row: low and high bytes of weights 0..3 in word 0, of weights 4..7
// in word 1.
struct Bytes {
  uint32_t low[2];
  uint32_t high[2];
};

// The bytes of Rint(w * scale) for eight packed weights w. Bits: the product is exact (or below one half, where it may
// be a denormal), and with kMagic = 1.5 * 2^23 added it lies in 2^23 .. 2^24, where the floats are the integers, so the
// addition rounds as Rint does.
template <typename T>
__device__ __forceinline__ Bytes BytesOf(const uint4& packed, float scale) {
  constexpr float kMagic = 12582912.0f;
  float w[8];
  Expand(packed, w, T());
  Bytes bytes;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t q[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) q[i] = FloatToBits(Fma(w[4 * half + i], scale, kMagic));
    const uint32_t first = __byte_perm(q[0], q[1], 0x5140);  // the low bytes of q[0] and q[1], then their high bytes
    const uint32_t second = __byte_perm(q[2], q[3], 0x5140);
    bytes.low[half] = __byte_perm(first, second, 0x5410);
    bytes.high[half] = __byte_perm(first, second, 0x7632);
  }
  return bytes;
}

// The A operands of a warp's 16 weight rows for one step. packed, scales: this thread's eight weights, and the scale,
// of row lane / 4 and of row 8 + lane / 4.
template <typename T>
__device__ __forceinline__ void MakeOperands(const uint4 (&packed)[2], const float (&scales)[2], uint32_t (&low)[4],
                                             uint32_t (&high)[4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Bytes bytes = BytesOf<T>(packed[r], scales[r]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      low[2 * half + r] = bytes.low[half];
      high[2 * half + r] = bytes.high[half];
    }
  }
}

}  // namespace stoch::cuda::fixed
