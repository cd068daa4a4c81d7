// SPDX-License-Identifier: Apache-2.0
// Codes of keys and values that a lane of a row kernel holds in registers, and the look-ups of keys.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/kv_cache.h"
#include "kernels/cuda/device/table_lookup.cuh"

namespace stoch::cuda {

inline constexpr int kLaneTokens = 4;  // tokens of a tile that a lane has: 16 bytes of keys in one load

// Looks up the keys of a lane's kLaneTokens tokens and adds the counts to counts[token]. k[j] and q[j]: codes of the
// four dimensions of word j of the warp's slice, a component of k[j] per token; words: words that the slice has.
// Requires: `rows` is the shared address of the count-table rows of the slice, in dimension order (LookUpWord).
template <int kSlots, int kSlot = 0>
__device__ __forceinline__ void LookUpKeys(const uint4 (&k)[kSlots], const uint32_t (&q)[kSlots], uint32_t rows,
                                           int words, Counts (&counts)[kLaneTokens]) {
  if constexpr (kSlot < kSlots) {
    if (kSlot < words) {
      LookUpWord<4 * kSlot>(k[kSlot].x, q[kSlot], rows, counts[0]);
      LookUpWord<4 * kSlot>(k[kSlot].y, q[kSlot], rows, counts[1]);
      LookUpWord<4 * kSlot>(k[kSlot].z, q[kSlot], rows, counts[2]);
      LookUpWord<4 * kSlot>(k[kSlot].w, q[kSlot], rows, counts[3]);
    }
    LookUpKeys<kSlots, kSlot + 1>(k, q, rows, words, counts);
  }
}

// A lane's values of four tokens: one word per dimension, with the codes of the four tokens. Up to four of a lane's
// dimensions are consecutive, so that one load brings their words.
template <int kSlots>
struct ValueWords {
  static constexpr int kVector = kSlots < 4 ? kSlots : 4;  // neighbouring dimensions of a lane
  uint32_t word[kSlots];

  // Returns the dimension of a lane's word number `slot`.
  __device__ __forceinline__ static int Dim(int lane, int slot) {
    return (slot / kVector * 32 + lane) * kVector + slot % kVector;
  }
  // Loads all words. from: the value word of dimension Dim(lane, 0).
  __device__ __forceinline__ void Load(const uint8_t* from, int lane, const KvView& kv) {
#pragma unroll
    for (int j = 0; j < kSlots; j += kVector) {
      if (Dim(lane, j) >= kv.head_dim) continue;
      const uint8_t* at = from + kv.ValueDim(j * 32) * 4;
      if constexpr (kVector == 4) {
        const uint4 v = __ldcg(reinterpret_cast<const uint4*>(at));
        word[j] = v.x;
        word[j + 1] = v.y;
        word[j + 2] = v.z;
        word[j + 3] = v.w;
      } else if constexpr (kVector == 2) {
        const uint2 v = __ldcg(reinterpret_cast<const uint2*>(at));
        word[j] = v.x;
        word[j + 1] = v.y;
      } else {
        word[j] = __ldcg(reinterpret_cast<const uint32_t*>(at));
      }
    }
  }
};

}  // namespace stoch::cuda
