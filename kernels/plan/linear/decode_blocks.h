// SPDX-License-Identifier: Apache-2.0
// How many blocks share the units (a chunk of 32 weight rows) of kernels that look counts up in shared memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/plan/gpu_traits.h"

namespace stoch {

// About one block per SM: a multiple of `chunks` if that leaves at most a tenth of the blocks unused.
inline int DecodeBlocks(const GpuTraits& gpu, int64_t warps, int64_t chunks, int64_t row_blocks) {
  const int64_t units = chunks * row_blocks;
  const int64_t most = std::min<int64_t>(gpu.sm_count, (units + warps - 1) / warps);
  if (chunks > most) return static_cast<int>(most);
  const int64_t aligned = most / chunks * chunks;
  return static_cast<int>(aligned * 10 >= most * 9 ? aligned : most);
}

}  // namespace stoch
