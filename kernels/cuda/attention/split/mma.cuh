// SPDX-License-Identifier: Apache-2.0
// Binary tensor cores for single rows: thermometers of keys and values by table, streams of queries and probabilities.
//
// The rows of a 16 x 8 tile are keys (or dimensions of values), its columns query heads. A lane of a quad owns four
// dimensions (positions) of sixteen and all four words of each, two words a step; order inside a stream is free. A
// negative code is the complement of its thermometer: popcount(~t & s) = popcount(s) - count, so that a step of byte
// MMA, which takes popcount(s) away where the code is negative, leaves the signed count.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/sc/format/tables.h"

namespace stoch::cuda {

inline constexpr int kCodes = 256;      // sign and level
inline constexpr int kTableCopies = 8;  // one for every bank group of 16 bytes: a quarter of a warp never conflicts
inline constexpr int kGroupDims = 16;   // that a quad takes at a time, or positions

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

// 1 in every byte of a negative code.
__device__ __forceinline__ uint32_t NegativeBytes(uint32_t codes) { return codes >> 7 & 0x01010101u; }

// Whether a code's rank is its level, and one more from 64 on: what the shifts below take for granted.
__host__ __device__ inline bool RanksBySum(const ScTables& tables) {
  return tables.direct_ranks && tables.stoc_len == 128;
}

// Thermometers of every code: ones below the level's rank, complemented for negative codes; words 0, 2, 1, 3.
// [kCodes][kTableCopies]. By kThreads threads, this one the `thread`th; the caller puts a barrier after it.
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

// The shared address of this lane's copy of the first thermometer.
__device__ __forceinline__ uint32_t LaneTable(const uint4* table) {
  return SharedAddress(table + (threadIdx.x & (kTableCopies - 1)));
}

// The thermometer of byte j of `codes`.
template <int j>
__device__ __forceinline__ uint4 LookUpThermometer(uint32_t lane_table, uint32_t codes) {
  constexpr uint32_t kStride = kTableCopies * sizeof(uint4);
  static_assert(kStride < 256);
  const uint32_t at = __dp4a(codes, kStride << (8 * j), lane_table);
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}

// The thermometer of byte j of `codes` as LookUpThermometer has it: by shifts where kDirect, by table otherwise.
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
    // Shifts end at 32; what must not start below 0 is in the two words between.
    const auto word = [&](int w) {
      return __funnelshift_lc(positive, negative, static_cast<uint32_t>(max(static_cast<int32_t>(ones) - 32 * w, 0)));
    };
    return make_uint4(__funnelshift_lc(positive, negative, ones), word(2), word(1),
                      __funnelshift_rc(positive, negative, zeros));
  }
}

// The stream of level `level` of dimension (or position) `dim`: four words, those past its end are 0.
__device__ __forceinline__ uint4 LoadStream(const ScTables& tables, int dim, int level) {
  const int64_t row = (dim & (tables.masks - 1)) * tables.levels + level;
  const uint32_t* from = tables.streams + row * tables.stream_words;
  if (tables.stream_words == 4) return LoadTable(from);
  const uint2 pair = LoadTablePair(from);
  return make_uint4(pair.x, pair.y, 0, 0);
}

// As LoadStream where `have`, no ones otherwise; without a branch.
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

// A stream in the order of thermometers: words 0, 2, 1, 3.
__device__ __forceinline__ uint4 Reordered(const uint4& stream) {
  return make_uint4(stream.x, stream.z, stream.y, stream.w);
}

__device__ __forceinline__ int Ones(const uint4& stream) {
  return __popc(stream.x) + __popc(stream.y) + __popc(stream.z) + __popc(stream.w);
}

// Minus the ones of the streams of four levels, a byte each. Requires: RanksBySum.
__device__ __forceinline__ uint32_t MinusOnes(uint32_t levels) {
  const uint32_t ones = levels + (levels >> 6 & 0x01010101u);
  return (0x80808080u - ones) ^ 0x80808080u;
}
// Minus the ones of streams, whole or in halves that are four lanes apart.
template <typename Stream>
__device__ __forceinline__ uint32_t MinusOnes(const Stream (&streams)[4]) {
  uint32_t ones = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) ones |= static_cast<uint32_t>(Ones(streams[i])) << (8 * i);
  if constexpr (sizeof(Stream) == sizeof(uint2)) ones += __shfl_xor_sync(0xffffffffu, ones, 4);
  return (0x80808080u - ones) ^ 0x80808080u;
}

}  // namespace stoch::cuda
