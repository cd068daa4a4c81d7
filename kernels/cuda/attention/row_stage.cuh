// SPDX-License-Identifier: Apache-2.0
// How the threads of a row kernel divide the tokens, and how a warp stages the count-table rows that it looks up.
//
// A warp looks up only rows that it staged itself, because block barriers would dominate the time of a short context.
// So in q k^T a warp owns a slice of the dimensions, and in p v the tokens whose probabilities its own threads hold.
#pragma once

#include "kernels/cuda/device/block_reduce.cuh"
#include "kernels/cuda/device/table_lookup.cuh"

namespace stoch::cuda {

// Consecutive tokens whose values share a word.
inline constexpr int kGroupTokens = 4;
// Tokens in a turn, which has one group for each warp of the block.
inline constexpr int kTurnTokens = kGroupTokens * kBlockWarps;
inline constexpr int kPaddedLanes = kRowLanes + kRowLanes / 32 * 4;  // Padded(kRowLanes)

// Returns which of kRowLanes consecutive tokens this thread holds. A warp holds group number `warp` of each turn.
__device__ __forceinline__ int OwnToken() {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  return lane / kGroupTokens * kTurnTokens + warp * kGroupTokens + lane % kGroupTokens;
}
// Index of token i in a shared array, padded so that the tokens of a warp have no bank conflicts.
__device__ __forceinline__ int Padded(int i) { return i + i / 32 * 4; }

// Returns the offset, in the byte table, of the count-table row of `level` at dimension (in p v: position) `dim`.
__device__ __forceinline__ int TablePlace(const ScTables& tables, int dim, int level) {
  return ((dim & (tables.masks - 1)) * tables.levels + level) * tables.levels;
}

// Copies groups of four count-table rows through registers to shared memory, by one warp. Lanes 8 j .. 8 j + 7 carry
// row j of every group, 16 bytes a lane.
template <int kGroups>
class RowCopies {
 public:
  // Issues the loads of all groups. place_of(g): TablePlace of the row that this lane carries of group g. Requires: all
  // lanes of a warp.
  template <typename PlaceOf>
  __device__ __forceinline__ void Load(const ScTables& tables, const PlaceOf& place_of) {
    // Two loops, so that no load is waited for before all loads are in flight.
    if (tables.levels >= 16) {
      const uint8_t* from = tables.counts8 + min(Piece(), tables.levels - 16);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) piece_[g] = LoadTable(from + place_of(g));
    } else {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) piece_[g] = ShortRow(tables.counts8 + place_of(g), tables.levels);
    }
  }
  // Stores the loaded rows: row 0 of group g goes to row g * kStride of `stage`.
  template <int kStride>
  __device__ __forceinline__ void Store(const ScTables& tables, uint8_t* stage) const {
    if (Piece() >= tables.levels) return;
    uint8_t* const to = stage + threadIdx.x % 32 * 16;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) *reinterpret_cast<uint4*>(to + g * kStride * kRowBytes) = piece_[g];
  }

 private:
  uint4 piece_[kGroups];

  // Offset of the 16 bytes of a row that this lane copies.
  __device__ __forceinline__ static int Piece() { return static_cast<int>(threadIdx.x % 8) * 16; }
  // A row of at most 8 levels (levels are a power of two), byte by byte.
  __device__ static uint4 ShortRow(const uint8_t* from, int levels) {
    uint64_t row = 0;
#pragma unroll 1
    for (int i = 0; i < levels; ++i) row |= uint64_t{from[i]} << (8 * i);
    return make_uint4(static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32), 0, 0);
  }
};

}  // namespace stoch::cuda
