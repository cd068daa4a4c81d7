// SPDX-License-Identifier: Apache-2.0
// Weight tiles of 32 rows x 16 dimensions: how a warp loads them and looks up their counts in the table rows that its
// block has staged (stage.cuh).
#pragma once

#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/sc/decode/args.cuh"
#include "kernels/cuda/sc/decode/stage.cuh"

namespace stoch::cuda::decode {

// Looks up one tile's 16 weights of a lane's row: adds their counts to `all`, and 128 times the counts of negative
// products to `negative`.
// rows:   shared address of the chunk's table rows, a multiple of 256: then one instruction extracts a weight's level
// from its word and makes the address of its count. Look-ups are bound by instructions.
// offset: byte offset in `rows` of the tile's first dimension.
// codes:  the 16 activations' codes, in shared memory.
// top:    whether an activation of the tile has the largest level, 127, whose count of 256 with level 127 reads 0.
__device__ __forceinline__ void AddTile(uint4 weights, uint32_t rows, uint32_t offset, const uint8_t* codes,
                                        unsigned& all, unsigned& negative, bool top) {
  const uint4 activations = *reinterpret_cast<const uint4*>(codes);
  const uint32_t w[4] = {weights.x, weights.y, weights.z, weights.w};
  const uint32_t a[4] = {activations.x, activations.y, activations.z, activations.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t levels = w[i] & 0x7f7f7f7fu;
    const uint32_t signs = (w[i] ^ a[i]) & 0x80808080u;
    const uint32_t row = offset + 4 * i * kRowBytes;
    // One of the four levels of a word is extracted on the ALU pipe and three on the multiply pipe: neither pipe alone
    // keeps up.
    uint32_t counts = LoadSharedByte<0>(__byte_perm(levels, rows, 0x7650) + row);
    counts += LoadSharedByte<0>(__dp4a(levels, 0x00000100u, rows) + row + kRowBytes) * 0x100u;
    counts += LoadSharedByte<0>(__dp4a(levels, 0x00010000u, rows) + row + 2 * kRowBytes) * 0x10000u;
    counts += LoadSharedByte<0>(__dp4a(levels, 0x01000000u, rows) + row + 3 * kRowBytes) * 0x1000000u;
    all = __dp4a(counts, 0x01010101u, all);
    negative = __dp4a(counts, signs, negative);
    if (top) {
      // 0x80 in each byte in which the weight and the activation have level 127.
      const unsigned both = (((w[i] & a[i]) & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
      all += __popc(both) * 256u;
      negative += __popc(both & signs) * (256u * 128u);
    }
  }
}

// Addresses of a unit for one lane of its warp; a lane has one of the unit's 32 weight rows.
struct Unit {
  const uint8_t* codes = nullptr;  // the row's 16 bytes in the first tile; kTileBytes to the next tile
  const float* scale = nullptr;    // the row's scale in the unit's chunk
  int tiles = 0;                   // tiles of the chunk; 0: past the block's last unit, nothing is loaded
};

__device__ __forceinline__ uint4 LoadTile(const Unit& unit, int tile) {
  return tile < unit.tiles ? LoadStreaming(unit.codes + tile * kTileBytes) : make_uint4(0, 0, 0, 0);
}
// Loads tiles kFirst..kEnd - 1 of a unit to tiles[kFirst..kEnd - 1]. A full chunk takes no branch per tile, because the
// compiler computes the L2 cache policy of the loads again after each branch.
template <int kFirst, int kEnd, int kTiles>
__device__ __forceinline__ void LoadTiles(const Unit& unit, uint4 (&tiles)[kTiles]) {
  if (unit.tiles == kChunkTiles) {
#pragma unroll
    for (int t = kFirst; t < kEnd; ++t) tiles[t] = LoadStreaming(unit.codes + t * kTileBytes);
  } else {
#pragma unroll
    for (int t = kFirst; t < kEnd; ++t) tiles[t] = LoadTile(unit, t);
  }
}
__device__ __forceinline__ float LoadScale(const Unit& unit) { return unit.tiles > 0 ? __ldg(unit.scale) : 0.0f; }

// acc[n] = the sum of signed counts of this lane's weight row with token n, over the unit's chunk. `slot`: index of the
// staged chunk. On entry `ring` holds the unit's first kRing tiles; on return it holds those of `next`, in flight.
template <bool kTop256, int kTokens, int kRing>
__device__ __forceinline__ void MultiplyUnit(const Unit& unit, const Unit& next, const Stage& stage, int slot,
                                             uint4 (&ring)[kRing], int (&acc)[kTokens]) {
  const uint32_t rows = SharedAddress(stage.rows) + slot * kTokens * kStageBytes;
  unsigned all[kTokens] = {};
  unsigned negative[kTokens] = {};
#pragma unroll
  for (int t = 0; t < kChunkTiles; ++t) {
    const uint4 weights = ring[t % kRing];
#pragma unroll
    for (int n = 0; n < kTokens; ++n) {
      AddTile(weights, rows + n * kStageBytes, t * kTileDims * kRowBytes,
              stage.codes + (slot * kTokens + n) * kChunkDims + t * kTileDims, all[n], negative[n],
              kTop256 && (stage.top_tiles[slot * kTokens + n] >> t & 1) != 0);
    }
    ring[t % kRing] = t + kRing < kChunkTiles ? LoadTile(unit, t + kRing) : LoadTile(next, t + kRing - kChunkTiles);
  }
#pragma unroll
  for (int n = 0; n < kTokens; ++n) acc[n] = static_cast<int>(all[n]) - static_cast<int>(negative[n] >> 6);
}

}  // namespace stoch::cuda::decode
