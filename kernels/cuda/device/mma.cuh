// SPDX-License-Identifier: Apache-2.0
// Binary and int8 mma.sync (sm_80 and newer), and byte operations that make their operands.
//
// Fragments, for lane l of a warp. A has 16 rows: a[0] and a[2] belong to row l / 4, a[1] and a[3] to row 8 + l / 4;
// a[0], a[1] are in the first half of the inner dimension, a[2], a[3] in the second. The accumulators d[0], d[1] are
// row l / 4, d[2], d[3] row 8 + l / 4, at columns 2 * (l % 4) and 2 * (l % 4) + 1.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace stoch::cuda {

// d += A B with signed bytes, inner dimension 32.
__device__ __forceinline__ void MmaBytes(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d += A B with A of unsigned bytes and B of signed bytes, inner dimension 32.
__device__ __forceinline__ void MmaUnsignedBytes(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d += popcount(A & B), inner dimension 256 bits.
__device__ __forceinline__ void MmaBits(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8 x 16-byte matrices from shared memory with ldmatrix, one register of each per lane: lane l gets bytes
// 4 * (l % 4) .. 4 * (l % 4) + 3 of row l / 4. Lane l passes the address of row l % 8 of matrix l / 8. The registers
// are B operands of mma.sync, whose columns are the rows in memory.
__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// Permutes bytes with prmt. A selector digit 8 + i gives bit 7 of byte i in all eight bits; __byte_perm ignores that
// selector bit.
template <uint32_t kSelector>
__device__ __forceinline__ uint32_t PermuteSigns(uint32_t codes) {
  uint32_t r;
  asm("prmt.b32 %0, %1, 0, %2;\n" : "=r"(r) : "r"(codes), "n"(kSelector));
  return r;
}

// Each byte of the result is 0xff if bit 7 of that byte of `codes` is set, else 0.
__device__ __forceinline__ uint32_t ByteSigns(uint32_t codes) { return PermuteSigns<0xba98>(codes); }

}  // namespace stoch::cuda
