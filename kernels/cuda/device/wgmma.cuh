// SPDX-License-Identifier: Apache-2.0
// Binary and byte wgmma of sm_90a, one specialization for each tile width N that a kernel uses.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace stoch::cuda {

// wgmma of a 64 x N tile by one warpgroup. Accumulator d[4 * b + 2 * i + j] is row 16 * warp + lane / 4 + 8 * i, column
// 8 * b + 2 * (lane % 4) + j. The function Bits sets d to popcount(A & B), or adds it to d if `accumulate`; Bytes adds
// A B of signed bytes to d. a: A fragment in registers; b: descriptor of B in shared memory.
template <int N>
struct Wgmma;

// Macros for inline assembly: TEXT_n lists operands %0 .. %(n - 1), REGISTERS_n binds the accumulators d[0] .. d[n - 1]
// to those operands. Defined for each accumulator count n that is used below.
#define STOCH_WGMMA_TEXT_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define STOCH_WGMMA_TEXT_12 STOCH_WGMMA_TEXT_8 ", %8, %9, %10, %11"
#define STOCH_WGMMA_TEXT_16 STOCH_WGMMA_TEXT_12 ", %12, %13, %14, %15"
#define STOCH_WGMMA_TEXT_24 STOCH_WGMMA_TEXT_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define STOCH_WGMMA_TEXT_32 STOCH_WGMMA_TEXT_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define STOCH_WGMMA_TEXT_48 \
  STOCH_WGMMA_TEXT_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define STOCH_WGMMA_TEXT_64 \
  STOCH_WGMMA_TEXT_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define STOCH_WGMMA_TEXT_96                                                                                     \
  STOCH_WGMMA_TEXT_64                                                                                           \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, " \
  "%85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define STOCH_WGMMA_REGISTERS_8 \
  "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
#define STOCH_WGMMA_REGISTERS_12 STOCH_WGMMA_REGISTERS_8, "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11])
#define STOCH_WGMMA_REGISTERS_16 STOCH_WGMMA_REGISTERS_12, "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
#define STOCH_WGMMA_REGISTERS_24                                                                                       \
  STOCH_WGMMA_REGISTERS_16, "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), \
      "+r"(d[23])
#define STOCH_WGMMA_REGISTERS_32                                                                                       \
  STOCH_WGMMA_REGISTERS_24, "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), \
      "+r"(d[31])
#define STOCH_WGMMA_REGISTERS_48                                                                                       \
  STOCH_WGMMA_REGISTERS_32, "+r"(d[32]), "+r"(d[33]), "+r"(d[34]), "+r"(d[35]), "+r"(d[36]), "+r"(d[37]), "+r"(d[38]), \
      "+r"(d[39]), "+r"(d[40]), "+r"(d[41]), "+r"(d[42]), "+r"(d[43]), "+r"(d[44]), "+r"(d[45]), "+r"(d[46]),          \
      "+r"(d[47])
#define STOCH_WGMMA_REGISTERS_64                                                                                       \
  STOCH_WGMMA_REGISTERS_48, "+r"(d[48]), "+r"(d[49]), "+r"(d[50]), "+r"(d[51]), "+r"(d[52]), "+r"(d[53]), "+r"(d[54]), \
      "+r"(d[55]), "+r"(d[56]), "+r"(d[57]), "+r"(d[58]), "+r"(d[59]), "+r"(d[60]), "+r"(d[61]), "+r"(d[62]),          \
      "+r"(d[63])
#define STOCH_WGMMA_REGISTERS_96                                                                                       \
  STOCH_WGMMA_REGISTERS_64, "+r"(d[64]), "+r"(d[65]), "+r"(d[66]), "+r"(d[67]), "+r"(d[68]), "+r"(d[69]), "+r"(d[70]), \
      "+r"(d[71]), "+r"(d[72]), "+r"(d[73]), "+r"(d[74]), "+r"(d[75]), "+r"(d[76]), "+r"(d[77]), "+r"(d[78]),          \
      "+r"(d[79]), "+r"(d[80]), "+r"(d[81]), "+r"(d[82]), "+r"(d[83]), "+r"(d[84]), "+r"(d[85]), "+r"(d[86]),          \
      "+r"(d[87]), "+r"(d[88]), "+r"(d[89]), "+r"(d[90]), "+r"(d[91]), "+r"(d[92]), "+r"(d[93]), "+r"(d[94]),          \
      "+r"(d[95])

// Defines Wgmma<N>. R = N / 2 is the number of accumulators, so operand R is a[0]; A1, A2, A3, B and P are the operand
// numbers of a[1], a[2], a[3], the descriptor b and `accumulate`.
#define STOCH_WGMMA(N, R, A1, A2, A3, B, P)                                                                            \
  template <>                                                                                                          \
  struct Wgmma<N> {                                                                                                    \
    static __device__ __forceinline__ void Bits(int32_t (&d)[R], const uint32_t (&a)[4], uint64_t b, int accumulate) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P                                                             \
                   ", 0;\n"                                                                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k256.s32.b1.b1.and.popc {" STOCH_WGMMA_TEXT_##R             \
                   "}, {%" #R ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p;\n}\n"                                      \
                   : STOCH_WGMMA_REGISTERS_##R                                                                         \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                             \
    }                                                                                                                  \
    static __device__ __forceinline__ void Bytes(int32_t (&d)[R], const uint32_t (&a)[4], uint64_t b) {                \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.s8.s8 {" STOCH_WGMMA_TEXT_##R                       \
                   "}, {%" #R ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", 1;\n"                                         \
                   : STOCH_WGMMA_REGISTERS_##R                                                                         \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                              \
    }                                                                                                                  \
    /* Bytes with A of unsigned bytes, B signed. */                                                                    \
    static __device__ __forceinline__ void UnsignedBytes(int32_t (&d)[R], const uint32_t (&a)[4], uint64_t b) {        \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.u8.s8 {" STOCH_WGMMA_TEXT_##R                       \
                   "}, {%" #R ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", 1;\n"                                         \
                   : STOCH_WGMMA_REGISTERS_##R                                                                         \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                              \
    }                                                                                                                  \
  };
STOCH_WGMMA(16, 8, 9, 10, 11, 12, 13)
STOCH_WGMMA(24, 12, 13, 14, 15, 16, 17)
STOCH_WGMMA(32, 16, 17, 18, 19, 20, 21)
STOCH_WGMMA(48, 24, 25, 26, 27, 28, 29)
STOCH_WGMMA(64, 32, 33, 34, 35, 36, 37)
STOCH_WGMMA(96, 48, 49, 50, 51, 52, 53)
STOCH_WGMMA(128, 64, 65, 66, 67, 68, 69)
STOCH_WGMMA(192, 96, 97, 98, 99, 100, 101)
#undef STOCH_WGMMA
#undef STOCH_WGMMA_TEXT_8
#undef STOCH_WGMMA_REGISTERS_8
#undef STOCH_WGMMA_TEXT_12
#undef STOCH_WGMMA_REGISTERS_12
#undef STOCH_WGMMA_TEXT_16
#undef STOCH_WGMMA_REGISTERS_16
#undef STOCH_WGMMA_TEXT_24
#undef STOCH_WGMMA_REGISTERS_24
#undef STOCH_WGMMA_TEXT_32
#undef STOCH_WGMMA_REGISTERS_32
#undef STOCH_WGMMA_TEXT_48
#undef STOCH_WGMMA_REGISTERS_48
#undef STOCH_WGMMA_TEXT_64
#undef STOCH_WGMMA_REGISTERS_64
#undef STOCH_WGMMA_TEXT_96
#undef STOCH_WGMMA_REGISTERS_96

}  // namespace stoch::cuda
