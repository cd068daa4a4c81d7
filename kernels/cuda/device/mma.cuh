// SPDX-License-Identifier: Apache-2.0
// Binary and int8 mma.sync (sm_80 and newer), and the sign bits of packed codes that their operands are made of.
//
// A of both is 16 rows: a[0] and a[2] of row lane / 4, a[1] and a[3] of row 8 + lane / 4, the first and the second half
// of the inner dimension. d: rows lane / 4 (d[0], d[1]) and 8 + lane / 4, columns 2 * (lane % 4) and the next.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace stoch::cuda {

// d += A B over 32 signed bytes.
__device__ __forceinline__ void MmaBytes(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// As above, with A unsigned.
__device__ __forceinline__ void MmaUnsignedBytes(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d += popcount(A & B) over 256 bits.
__device__ __forceinline__ void MmaBits(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8 rows of 16 bytes, a register each: lane l has bytes 4 * (l % 4) on of row l / 4, and gives the address
// of row l % 8 of matrix l / 8. An operand B of mma.sync, whose columns are such rows.
__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// Byte permutation with sign replication: a selector digit 8 + i is bit 7 of byte i, eight times. (__byte_perm drops
// that bit of the selector.)
template <uint32_t kSelector>
__device__ __forceinline__ uint32_t PermuteSigns(uint32_t codes) {
  uint32_t r;
  asm("prmt.b32 %0, %1, 0, %2;\n" : "=r"(r) : "r"(codes), "n"(kSelector));
  return r;
}

// Bit 7 of each of four bytes, spread over the byte.
__device__ __forceinline__ uint32_t ByteSigns(uint32_t codes) { return PermuteSigns<0xba98>(codes); }

}  // namespace stoch::cuda
