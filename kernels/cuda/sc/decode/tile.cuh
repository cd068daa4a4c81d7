// SPDX-License-Identifier: Apache-2.0
// Tiles of 32 weight rows x 16 dimensions, as a warp loads them and looks their counts up in staged table rows.
#pragma once

#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/sc/decode/args.cuh"
#include "kernels/cuda/sc/decode/stage.cuh"

namespace stoch::cuda::decode {

// One tile of a lane's row: adds counts to `all` and 128 * (counts whose product is negative) to `negative`. `rows` is
// the shared address of a chunk's table rows, a multiple of 256, `offset` the tile's place in it: taking a level out of
// its word gives the address of its count in the same instruction, and instructions are what a look-up costs.
// `top`: whether an activation of the tile has the largest level, whose counts of 256 read 0 (there are 128 levels).
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
    // One by the logic pipe, three by the multiply pipe: both are needed to keep up.
    uint32_t counts = LoadSharedByte<0>(__byte_perm(levels, rows, 0x7650) + row);
    counts += LoadSharedByte<0>(__dp4a(levels, 0x00000100u, rows) + row + kRowBytes) * 0x100u;
    counts += LoadSharedByte<0>(__dp4a(levels, 0x00010000u, rows) + row + 2 * kRowBytes) * 0x10000u;
    counts += LoadSharedByte<0>(__dp4a(levels, 0x01000000u, rows) + row + 3 * kRowBytes) * 0x1000000u;
    all = __dp4a(counts, 0x01010101u, all);
    negative = __dp4a(counts, signs, negative);
    if (top) {  // 0x80 where both levels are 127
      const unsigned both = (((w[i] & a[i]) & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
      all += __popc(both) * 256u;
      negative += __popc(both & signs) * (256u * 128u);
    }
  }
}

// Where a warp's tiles of one chunk and 32 rows are. No tiles: past the block's last unit.
struct Unit {
  const uint8_t* codes = nullptr;  // this lane's 16 bytes of the first tile
  const float* scale = nullptr;    // this lane's
  int tiles = 0;
};

__device__ __forceinline__ uint4 LoadTile(const Unit& unit, int tile) {
  return tile < unit.tiles ? LoadStreaming(unit.codes + tile * kTileBytes) : make_uint4(0, 0, 0, 0);
}
// Tiles kFirst..kEnd - 1 to their places. Of a whole unit without a branch a tile, each of which makes the cache's policy
// again.
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

// acc[token] = the signed counts of a unit, whose first kRing tiles are in `ring`, against the staged rows of `slot`. The
// first tiles of `next` take their places.
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
