// SPDX-License-Identifier: Apache-2.0
// Access to count tables whose entries have 16 or 32 bits.
#pragma once

#include "kernels/cuda/sc/format/lengths.h"

namespace stoch::cuda {

// The counts of a table, int16_t or int32_t; null for stream length 0.
template <typename Count>
__device__ inline const Count* CountsOf(const LengthTable& table) {
  return static_cast<const Count*>(sizeof(Count) == 2 ? static_cast<const void*>(table.counts16) : table.counts32);
}

}  // namespace stoch::cuda
