// Look-ups of sign-magnitude codes in count-table rows held in shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/tables.h"

namespace stoch::cuda {

// Distance of staged rows. A row has at most 128 one-byte counts: one word in each of the 32 banks.
inline constexpr int kRowBytes = 128;

// Row `level` of the table of `dim`'s mask.
struct TableRow {
  int dim = 0;
  int level = 0;
};

// What: copies rows row_of(0..count-1) of an operator's byte table to `stage`; all kThreads threads of the block take
//       part. The caller separates it from the look-ups by barriers.
template <int kThreads, typename RowOf>
__device__ __forceinline__ void StageRows(uint8_t* stage, const ScTables& tables, int count, const RowOf& row_of) {
  const auto source = [&](int i) {
    const TableRow row = row_of(i);
    return tables.counts8 + ((row.dim & (tables.masks - 1)) * tables.levels + row.level) * tables.levels;
  };
  if (tables.levels >= 16) {
    const int shift = 27 - __clz(tables.levels);  // levels is a power of two: 16-byte pieces of a row
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < count << shift; i += kThreads) {
      const int row = i >> shift;
      const int piece = i & ((1 << shift) - 1);
      reinterpret_cast<uint4*>(stage + row * kRowBytes)[piece] = reinterpret_cast<const uint4*>(source(row))[piece];
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      const uint8_t* from = source(i);
#pragma unroll 1
      for (int b = 0; b < tables.levels; ++b) stage[i * kRowBytes + b] = from[b];
    }
  }
}

// What: sum + the signed counts of four codes, byte j of `codes` in row j of `rows`; bit 7 of byte j of `signs` flips
//       the sign.
__device__ __forceinline__ int32_t LookUpWord(uint32_t codes, uint32_t signs, const uint8_t* rows, int32_t sum) {
  const uint32_t levels = codes & 0x7f7f7f7fu;
  const uint32_t c0 = rows[levels & 0xff];
  const uint32_t c1 = rows[kRowBytes + ((levels >> 8) & 0xff)];
  const uint32_t c2 = rows[2 * kRowBytes + ((levels >> 16) & 0xff)];
  const uint32_t c3 = rows[3 * kRowBytes + (levels >> 24)];
  const uint32_t counts = __byte_perm(__byte_perm(c0, c1, 0x0040), __byte_perm(c2, c3, 0x0040), 0x5410);
  // +1 or -1 in every byte: its sign bit, replicated.
  uint32_t plus_minus;
  asm("prmt.b32 %0, %1, 0, 0xba98;" : "=r"(plus_minus) : "r"(codes ^ signs));
  plus_minus |= 0x01010101u;
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(counts), "r"(plus_minus));
  return sum;
}

// Whether a byte of `row_codes` has the level whose table entry stands for 256 (ScTables::top_is_256).
__device__ __forceinline__ bool HasTop(const ScTables& tables, uint32_t row_codes) {
  if (!tables.top_is_256) return false;
  const uint32_t top = static_cast<uint32_t>(tables.levels - 1) * 0x01010101u;
  return __vcmpeq4(row_codes & 0x7f7f7f7fu, top) != 0;
}

// What: what LookUpWord misses where HasTop(row_codes): +-256 for every byte in which both codes have level `top`.
//       Out of line: it is rare, and the look-up loops should stay small.
static __device__ __noinline__ int32_t TopCorrection(uint32_t codes, uint32_t signs, uint32_t row_codes, int top) {
  int32_t sum = 0;
#pragma unroll 1
  for (int j = 0; j < 4; ++j) {
    const bool both = ((row_codes >> (8 * j)) & 0x7f) == static_cast<uint32_t>(top) &&
                      ((codes >> (8 * j)) & 0x7f) == static_cast<uint32_t>(top);
    if (both) sum += (((codes ^ signs) >> (8 * j + 7)) & 1) != 0 ? -256 : 256;
  }
  return sum;
}

}  // namespace stoch::cuda
