// SPDX-License-Identifier: Apache-2.0
// How the threads of a row kernel share its tokens, and the count-table rows that a warp stages for itself.
//
// Nothing that a warp looks up was staged by another one: barriers of the block are what a short context costs. So a
// warp owns a slice of the dimensions of q k^T, and of p v the tokens whose probabilities its own threads hold.
#pragma once

#include "kernels/cuda/device/block_reduce.cuh"
#include "kernels/cuda/device/table_lookup.cuh"

namespace stoch::cuda {

inline constexpr int kGroupTokens = 4;                               // whose values a word holds
inline constexpr int kTurnTokens = kGroupTokens * kBlockWarps;       // a group for every warp
inline constexpr int kPaddedLanes = kRowLanes + kRowLanes / 32 * 4;  // Padded(kRowLanes)

// Which of kRowLanes tokens is a thread's: of every turn of the warps, its warp's group.
__device__ __forceinline__ int OwnToken() {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  return lane / kGroupTokens * kTurnTokens + warp * kGroupTokens + lane % kGroupTokens;
}
// The place of token i in shared memory, such that those of a warp are in different banks.
__device__ __forceinline__ int Padded(int i) { return i + i / 32 * 4; }

// Where the row of a level is in the byte table, for a dimension (or token) `dim`.
__device__ __forceinline__ int TablePlace(const ScTables& tables, int dim, int level) {
  return ((dim & (tables.masks - 1)) * tables.levels + level) * tables.levels;
}

// Groups of four table rows in flight to shared memory. Lanes 8 j to 8 j + 7 carry row j of each.
template <int kGroups>
class RowCopies {
 public:
  // Starts to copy all groups. place_of(g): TablePlace of this lane's row.
  // Requires: all lanes of a warp.
  template <typename PlaceOf>
  __device__ __forceinline__ void Load(const ScTables& tables, const PlaceOf& place_of) {
    // Apart, so that nothing looks at what was loaded before everything is in flight.
    if (tables.levels >= 16) {
      const uint8_t* from = tables.counts8 + min(Piece(), tables.levels - 16);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) piece_[g] = LoadTable(from + place_of(g));
    } else {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) piece_[g] = ShortRow(tables.counts8 + place_of(g), tables.levels);
    }
  }
  // Group g goes to stage + g * kStride rows.
  template <int kStride>
  __device__ __forceinline__ void Store(const ScTables& tables, uint8_t* stage) const {
    if (Piece() >= tables.levels) return;
    uint8_t* const to = stage + threadIdx.x % 32 * 16;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) *reinterpret_cast<uint4*>(to + g * kStride * kRowBytes) = piece_[g];
  }

 private:
  uint4 piece_[kGroups];

  __device__ __forceinline__ static int Piece() { return static_cast<int>(threadIdx.x % 8) * 16; }  // of a row
  __device__ static uint4 ShortRow(const uint8_t* from, int levels) {
    uint64_t row = 0;
#pragma unroll 1
    for (int i = 0; i < levels; ++i) row |= uint64_t{from[i]} << (8 * i);
    return make_uint4(static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32), 0, 0);
  }
};

}  // namespace stoch::cuda
