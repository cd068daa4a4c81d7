// SPDX-License-Identifier: Apache-2.0
// Ranks of weight levels (the number of ones of a level's stream) from a table in shared memory, for operators whose
// ranks are not those of the formula DirectRanks (sc/tensor_core/operand.cuh).
#pragma once

#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/sc/tensor_core/operand.cuh"

namespace stoch::cuda {

// Fills the rank table [kHalves][max(masks, 16)][128 levels] in shared memory, by all threads of the block. An entry is
// the rank within a half of the stream: 0..32 * kWords. ranks: ScTables::ranks [masks][levels]. The caller's next
// barrier makes the table visible.
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

// The ranks of four codes, both packed and one a register as they come from the table, so that no instruction has to
// extract them.
struct ApartRanks : PackedRanks {
  uint32_t each[4];
  template <int kByte>
  __device__ __forceinline__ uint32_t rank() const {
    return each[kByte];
  }
};

// The ranks of four codes of consecutive dimensions. `table`: shared address of the first dimension's row of 128 bytes.
// Requires: table % 256 == 0: one instruction then extracts a level from its word and makes the address of its rank.
__device__ __forceinline__ ApartRanks TableRanks(uint32_t table, uint32_t codes) {
  const uint32_t q = codes & 0x7f7f7f7f;
  ApartRanks r;
  r.each[0] = LoadSharedByte<0>(__byte_perm(q, table, 0x7650));
  r.each[1] = LoadSharedByte<128>(__byte_perm(q, table, 0x7651));
  r.each[2] = LoadSharedByte<2 * 128>(__byte_perm(q, table, 0x7652));
  r.each[3] = LoadSharedByte<3 * 128>(__byte_perm(q, table, 0x7653));
  // Packed by multiply-adds, because the ALU pipe is loaded with making thermometers.
  r.packed = r.each[0] + r.each[1] * 0x100u + r.each[2] * 0x10000u + r.each[3] * 0x1000000u;
  return r;
}

}  // namespace stoch::cuda
