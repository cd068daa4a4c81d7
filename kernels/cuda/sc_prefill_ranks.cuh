// Ranks of weight levels from a table in shared memory, for operators whose ranks are not DirectRanks
// (sc_prefill_operand.cuh).
#pragma once

#include "kernels/cuda/sc_prefill_operand.cuh"
#include "kernels/cuda/sc_prefill_wgmma.cuh"

namespace stoch::cuda {

// What: fills [kHalves][max(masks, 16)][128] with ranks within each half of the positions; `ranks`: ScTables::ranks.
// All
//       threads of the block take part; a barrier is left to the caller.
template <int kWords, int kHalves>
__device__ __forceinline__ void FillRankTable(const uint16_t* ranks, int masks, int levels, uint8_t* table) {
  const int rows = max(masks, 16);
  for (int i = static_cast<int>(threadIdx.x); i < kHalves * rows * 128; i += static_cast<int>(blockDim.x)) {
    const int level = min(i % 128, levels - 1);
    const int mask = i / 128 % rows & (masks - 1);
    const int before = i / (128 * rows) * 32 * kWords;
    table[i] = static_cast<uint8_t>(min(max(ranks[mask * levels + level] - before, 0), 32 * kWords));
  }
}

// Ranks of four codes of consecutive dimensions; `table`: shared address of the first dimension's row of 128 bytes.
__device__ __forceinline__ uint32_t TableRanks(uint32_t table, uint32_t codes) {
  const uint32_t q = codes & 0x7f7f7f7f;
  uint32_t r[4];
  Unrolled<4>([&](auto j) { r[j] = LoadSharedByte<j * 128>(table + __byte_perm(q, 0, 0x4440 + j)); });
  return __byte_perm(__byte_perm(r[0], r[1], 0x0040), __byte_perm(r[2], r[3], 0x0040), 0x5410);
}

}  // namespace stoch::cuda
