// SPDX-License-Identifier: Apache-2.0
// What the kernels that write activations as bitstreams share.
#pragma once

#include "kernels/cuda/sc/tensor_core/streams.h"

namespace stoch::cuda {

// The bits of word `word` of a stream that are inside stoc_len.
__device__ __forceinline__ uint32_t ValidBits(int word, int stoc_len) {
  const int bits = stoc_len - 32 * word;
  return bits >= 32 ? ~0u : bits <= 0 ? 0u : (1u << bits) - 1;
}

}  // namespace stoch::cuda
