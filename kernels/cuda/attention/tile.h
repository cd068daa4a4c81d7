// SPDX-License-Identifier: Apache-2.0
// SC attention of tiles of kQueryTile rows: what its kernels share. Private to tile*.cu.
//
// Per group of tiles three kernels run: scores as 16-bit counts by binary tensor cores, softmax and quantization of the
// probabilities, p v by binary tensor cores. Before them the keys and values of the long sequences are packed once, so
// that no kernel walks pages. count = popcount(stream of a & thermometer of b); b is expanded in registers from its
// rank and sign, and a negative operand is complemented, which an int8 product corrects (docs/fast-kernels.md#prompts).
#pragma once

#include "kernels/cuda/attention/tile_window.h"

namespace stoch::cuda {

// Four codes as the tensor-core kernels want them: bytes of ranks (0..128), and the codes for their signs.
using PackedWord = uint2;

// k and v of the long sequences of a pass, end to end (PassSequence::packed_begin); padding holds code 0.
struct PackedKv {
  PackedWord* k = nullptr;    // [kv_head][position / kKeyBlock][dim / 4][position % kKeyBlock]
  PackedWord* v = nullptr;    // [kv_head][position / 4][dim]
  float* k_scales = nullptr;  // [kv_head][position]
  float* v_scales = nullptr;
  int64_t positions = 0;
};

// Scratch of one group of tiles. Rows are those of a tile, positions its sequence's, `stride` of them from FirstKept on.
struct TileScratch {
  int16_t* scores = nullptr;  // [tile][num_heads][kQueryTile][stride]: counts of q k
  PackedWord* p = nullptr;    // [tile][num_heads][kQueryTile][stride / 4]: codes, and minus the ones in their streams
  float* p_scales = nullptr;  // [tile][num_heads][kQueryTile]
  int64_t stride = 0;         // a multiple of kKeyBlock
};

struct TileArgs {
  AttentionArgs attention;
  ScTables qk, av;
  QueryCodes q;
  WindowScales window;
  PackedKv kv;
  TileScratch scratch;
  const QueryTile* tiles = nullptr;  // of this group
  int32_t num_tiles = 0;
  uint32_t zero = 0;  // see ValueUnit
  int32_t heads = 0;  // of the launch, from head 0 of what the pointers point to

#if defined(__CUDACC__)
  // Where position 0 of a row of the tile would be in the scratch.
  __device__ __forceinline__ int64_t RowAt(int64_t row, const QueryTile& tile) const {
    return row * scratch.stride - FirstKept(attention, tile.PositionOf(0));
  }
#endif
};

// tile_softmax.cu
void LaunchPackKv(DeviceContext& ctx, const TileArgs& args, const TileBatch& batch);
void LaunchTileSoftmax(DeviceContext& ctx, const ScTilePlan& plan, const TileArgs& args, AttentionMode mode,
                       bool head_max);
// tile_mma.cu
void LaunchTileScores(DeviceContext& ctx, const ScTilePlan& plan, const TileArgs& args);
void LaunchTileValues(DeviceContext& ctx, const ScTilePlan& plan, const TileArgs& args, AttentionMode mode);

}  // namespace stoch::cuda
