// SPDX-License-Identifier: Apache-2.0
// Converts a pointer to the 32-bit shared-memory address that PTX instructions take.
#pragma once

#include <cstdint>

namespace stoch::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace stoch::cuda
