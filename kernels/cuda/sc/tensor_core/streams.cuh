// SPDX-License-Identifier: Apache-2.0
// Device functions shared by the kernels that write activations as bitstreams (streams.h has the layout).
#pragma once

#include "kernels/cuda/sc/tensor_core/streams.h"

namespace stoch::cuda {

// A mask of the bits of 32-bit word `word` of a stream that belong to its stoc_len cycles.
__device__ __forceinline__ uint32_t ValidBits(int word, int stoc_len) {
  const int bits = stoc_len - 32 * word;
  return bits >= 32 ? ~0u : bits <= 0 ? 0u : (1u << bits) - 1;
}

// Makes one lane's word of every unit of a token (streams.h) from the lane's four codes of neighbouring dimensions, and
// hands each to store(unit, word). entry(j, level) returns the stream of code j, four words; valid(k) returns ValidBits
// of word k of a stream.
// Requires: words <= kMostWords <= 4, `words` being the words of a half stream.
template <int kMostWords, typename Entry, typename Valid, typename Store>
__device__ __forceinline__ void StoreUnits(uint32_t codes, int words, const Entry& entry, const Valid& valid,
                                           const Store& store) {
  uint32_t signs = 0, ones = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t code = (codes >> (8 * j)) & 0xff;
    const uint32_t negative = code >> 7;
    const uint4 stream = entry(j, static_cast<int>(code & 0x7f));
    const uint32_t w[4] = {stream.x, stream.y, stream.z, stream.w};
    uint32_t count = 0;
#pragma unroll
    for (int k = 0; k < kMostWords; ++k) {
      if (k >= words) break;
      const uint32_t word = (w[k] ^ (0 - negative)) & valid(k);
      count += static_cast<uint32_t>(__popc(word));
      store(j * words + k, word);
    }
    signs |= negative << (8 * j);
    ones |= ((negative - count) & 0xff) << (8 * j);
  }
  store(4 * words, signs);
  store(4 * words + 1, ones);
}

}  // namespace stoch::cuda
