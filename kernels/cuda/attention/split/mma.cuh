// SPDX-License-Identifier: Apache-2.0
// Building blocks for SC products of single rows on binary tensor cores. Operand A has thermometers of codes of K or V,
// from a table in shared memory. Operand B has streams of queries, or of weights (the numbers that p v quantizes).
//
// The rows of a 16 x 8 tile are keys (q k) or dimensions of values (p v), the columns are query heads. Along the inner
// dimension, each of the four lanes of a quad owns four of 16 dimensions (or positions), with all four words of a
// stream; one step takes two words of a lane. The order of bits inside a stream is free, as long as both operands share
// it. A negative code is the complement of its thermometer t: popcount(~t & s) = popcount(s) - count for a stream s. A
// step of byte MMA then subtracts popcount(s) for every negative code, which leaves the signed count.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/sc/format/tables.h"

namespace stoch::cuda {

inline constexpr int kCodes = 256;  // number of codes: a code is a byte with a sign and 7 bits of level
// Copies of the thermometer table, one for each group of four banks (16 bytes), so that a quarter warp has no bank
// conflict.
inline constexpr int kTableCopies = 8;
inline constexpr int kGroupDims = 16;  // dimensions (q k) or positions (p v) that a quad of lanes takes at a time

__device__ __forceinline__ void BinaryMma(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                          uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void ByteMma(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a0), "r"(a1), "r"(b));
}

__device__ __forceinline__ void ByteMma32(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                          const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b[0]), "r"(b[1]));
}

// Returns 1 in every byte that holds a negative code, and 0 in the other bytes.
__device__ __forceinline__ uint32_t NegativeBytes(uint32_t codes) { return codes >> 7 & 0x01010101u; }

// Whether the rank of a level (the number of ones in its stream) is the level if it is below 64, and the level + 1
// otherwise, with streams of 128 cycles. Then ranks need no table: OtherThermometer and MinusOnes compute them.
__host__ __device__ inline bool RanksBySum(const ScTables& tables) {
  return tables.direct_ranks && tables.stoc_len == 128;
}

// Fills `table` in shared memory, [kCodes][kTableCopies], with the thermometer of every code: ones up to the rank of
// the level, complemented for a negative code, as 128 bits in the order of words 0, 2, 1, 3. Called by kThreads
// threads, this one being number `thread`; the caller puts a barrier after it.
template <int kThreads>
__device__ __forceinline__ void FillThermometers(const ScTables& tables, uint4* table,
                                                 int thread = static_cast<int>(threadIdx.x)) {
#pragma unroll 1
  for (int code = thread; code < kCodes; code += kThreads) {
    const int level = code & 0x7f;
    const int rank = RanksBySum(tables) ? level + (level >> 6) : level < tables.levels ? tables.ranks[level] : 0;
    const uint32_t flip = (code & 0x80) != 0 ? 0xffffffffu : 0u;
    const auto word = [&](int w) {
      const int ones = min(max(rank - 32 * w, 0), 32);
      return (ones == 32 ? 0xffffffffu : (1u << ones) - 1) ^ flip;
    };
    const uint4 entry = make_uint4(word(0), word(2), word(1), word(3));
#pragma unroll
    for (int i = 0; i < kTableCopies; ++i) table[code * kTableCopies + ((i + code) & (kTableCopies - 1))] = entry;
  }
}

// Returns the shared address of this lane's copy of the thermometer of code 0: lane_table of the look-ups below.
__device__ __forceinline__ uint32_t LaneTable(const uint4* table) {
  return SharedAddress(table + (threadIdx.x & (kTableCopies - 1)));
}

// Returns the thermometer of byte j of `codes` from the table.
template <int j>
__device__ __forceinline__ uint4 LookUpThermometer(uint32_t lane_table, uint32_t codes) {
  constexpr uint32_t kStride = kTableCopies * sizeof(uint4);
  static_assert(kStride < 256);
  const uint32_t at = __dp4a(codes, kStride << (8 * j), lane_table);
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}

// Returns the thermometer of byte j of `codes`, its words in the order of the table: computed by shifts if kDirect
// (requires RanksBySum), else looked up.
template <bool kDirect, int j>
__device__ __forceinline__ uint4 OtherThermometer(uint32_t lane_table, uint32_t codes) {
  if constexpr (!kDirect) {
    return LookUpThermometer<j>(lane_table, codes);
  } else {
    const uint32_t levels = codes & 0x7f7f7f7fu;
    const uint32_t ranks = levels + (levels >> 6 & 0x01010101u);
    uint32_t negative;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(negative) : "r"(codes), "n"(0x1111u * (8 + j)));
    const uint32_t positive = ~negative;
    const uint32_t ones = __byte_perm(ranks, 0, 0x4440 + j);
    const uint32_t zeros = __byte_perm(0x80808080u - ranks, 0, 0x4440 + j);
    // Funnel shifts clamp a shift count above 32. Shift counts of the two middle words may be negative and are clamped
    // at 0 here.
    const auto word = [&](int w) {
      return __funnelshift_lc(positive, negative, static_cast<uint32_t>(max(static_cast<int32_t>(ones) - 32 * w, 0)));
    };
    return make_uint4(__funnelshift_lc(positive, negative, ones), word(2), word(1),
                      __funnelshift_rc(positive, negative, zeros));
  }
}

// Returns the stream of a level in dimension (or position) `dim`: four words, 0 past the end of the stream.
__device__ __forceinline__ uint4 LoadStream(const ScTables& tables, int dim, int level) {
  const int64_t row = (dim & (tables.masks - 1)) * tables.levels + level;
  const uint32_t* from = tables.streams + row * tables.stream_words;
  if (tables.stream_words == 4) return LoadTable(from);
  const uint2 pair = LoadTablePair(from);
  return make_uint4(pair.x, pair.y, 0, 0);
}

// Sets `to` to the stream that LoadStream returns if `have`, else to 0, without a branch.
__device__ __forceinline__ void LoadStreamIf(bool have, const ScTables& tables, int dim, int level, uint4& to) {
  const int64_t row = (dim & (tables.masks - 1)) * tables.levels + level;
  const uint32_t* from = tables.streams + row * tables.stream_words;
  to = make_uint4(0, 0, 0, 0);
  asm volatile(
      "{\n.reg .pred two, four;\nsetp.eq.u32 two, %5, 2;\nsetp.eq.u32 four, %5, 4;\n"
      "@two ld.global.nc.L2::cache_hint.v2.u32 {%0, %1}, [%4], %6;\n"
      "@four ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %6;\n}"
      : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
      : "l"(from), "r"(have ? tables.stream_words : 0), "l"(KeepPolicy()));
}

__device__ __forceinline__ int Ones(const uint2& half) { return __popc(half.x) + __popc(half.y); }

// Returns a stream with its words in the order of the thermometer table: 0, 2, 1, 3.
__device__ __forceinline__ uint4 Reordered(const uint4& stream) {
  return make_uint4(stream.x, stream.z, stream.y, stream.w);
}

__device__ __forceinline__ int Ones(const uint4& stream) {
  return __popc(stream.x) + __popc(stream.y) + __popc(stream.z) + __popc(stream.w);
}

// Returns minus the ones of the streams of four levels, a signed byte each. Requires: RanksBySum.
__device__ __forceinline__ uint32_t MinusOnes(uint32_t levels) {
  const uint32_t ones = levels + (levels >> 6 & 0x01010101u);
  return (0x80808080u - ones) ^ 0x80808080u;
}
// Returns minus the ones of four streams, a signed byte each. Stream: uint4 is a whole stream; uint2 is half of one,
// and lane ^ 4 has the other half. Called by all lanes of a warp.
template <typename Stream>
__device__ __forceinline__ uint32_t MinusOnes(const Stream (&streams)[4]) {
  uint32_t ones = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) ones |= static_cast<uint32_t>(Ones(streams[i])) << (8 * i);
  if constexpr (sizeof(Stream) == sizeof(uint2)) ones += __shfl_xor_sync(0xffffffffu, ones, 4);
  return (0x80808080u - ones) ^ 0x80808080u;
}

}  // namespace stoch::cuda
