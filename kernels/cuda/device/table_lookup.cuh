// SPDX-License-Identifier: Apache-2.0
// Looks up products of sign-magnitude codes in count-table rows that are staged in shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/sc/format/tables.h"

namespace stoch::cuda {

// Bytes from one staged row to the next. A row has at most 128 one-byte counts: one word in each of the 32 banks.
inline constexpr int kRowBytes = 128;

// Sums of the counts looked up so far: `all` over all products, and `negative` 128 times the sum over negative
// products.
struct Counts {
  uint32_t all = 0;
  uint32_t negative = 0;

  // The signed sum: counts of positive products minus counts of negative ones.
  __device__ __forceinline__ int32_t Sum() const {
    return static_cast<int32_t>(all) - static_cast<int32_t>(negative >> 6);
  }
};

// Adds the counts of four products: byte j of `codes` selects the entry of staged row kRow + j. The staged rows begin
// at shared address `rows`. Bit 7 of byte j of `signs` flips the sign of product j. Requires: rows % 256 == 0, so that
// one instruction both extracts a level from `codes` and adds the row address.
template <int kRow>
__device__ __forceinline__ void LookUpWord(uint32_t codes, uint32_t signs, uint32_t rows, Counts& counts) {
  constexpr int kAt = kRow * kRowBytes;
  const uint32_t levels = codes & 0x7f7f7f7fu;
  const uint32_t minus = (codes ^ signs) & 0x80808080u;
  uint32_t c = LoadSharedByte<kAt>(__byte_perm(levels, rows, 0x7650));
  c += LoadSharedByte<kAt + kRowBytes>(__dp4a(levels, 0x00000100u, rows)) * 0x100u;
  c += LoadSharedByte<kAt + 2 * kRowBytes>(__dp4a(levels, 0x00010000u, rows)) * 0x10000u;
  c += LoadSharedByte<kAt + 3 * kRowBytes>(__dp4a(levels, 0x01000000u, rows)) * 0x1000000u;
  counts.all = __dp4a(c, 0x01010101u, counts.all);
  counts.negative = __dp4a(c, minus, counts.negative);
}

// 0x80 in every byte of row_codes whose level is the highest one, if that level's table entry stands for 256 but holds
// 0 in its byte (ScTables::top_is_256); else 0.
__device__ __forceinline__ uint32_t TopBytes(const ScTables& tables, uint32_t row_codes) {
  if (!tables.top_is_256) return 0;
  const uint32_t top = static_cast<uint32_t>(tables.levels - 1) * 0x01010101u;
  return __vcmpeq4(row_codes & 0x7f7f7f7fu, top) & 0x80808080u;
}

// The correction to add to LookUpWord's sum: 256, with the product's sign, for each of the four products whose two
// codes have the highest level. row_tops: TopBytes of the staged rows' codes.
__device__ __forceinline__ int32_t TopCorrection(const ScTables& tables, uint32_t row_tops, uint32_t codes,
                                                 uint32_t signs) {
  const uint32_t both = row_tops & TopBytes(tables, codes);
  return 256 * (__popc(both) - 2 * __popc(both & (codes ^ signs)));
}

}  // namespace stoch::cuda
