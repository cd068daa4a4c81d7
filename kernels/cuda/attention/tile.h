// SPDX-License-Identifier: Apache-2.0
// SC attention of tiles of kQueryTile rows by mma.sync: the arguments that the kernels share. Private to tile*.cu.
//
// Three kernels run for each group of tiles: scores as 16-bit counts by binary tensor cores, softmax and quantization
// of the probabilities, p v by binary tensor cores (tile_int8.cu: by int8 ones). A fourth kernel first packs keys and
// values of the long sequences once, so that the other kernels do not look up pages. count = popcount(stream of a &
// thermometer of b). A thermometer has ones up to the rank of b's code; registers make it from rank and sign. The
// stream of a negative operand is complemented, which an int8 product corrects (docs/fast-kernels.md#prompts).
#pragma once

#include "kernels/cuda/attention/tile_window.h"

namespace stoch::cuda {

// Four codes as operands of the tensor-core kernels: x has their ranks (0..128), a byte each; y the codes, for their
// signs.
using PackedWord = uint2;

// Codes and scales of the keys and values of a batch's long sequences, gathered from cache pages into contiguous
// memory, sequence after sequence (PassSequence::packed_begin); padding holds code 0.
struct PackedKv {
  PackedWord* k = nullptr;    // keys [kv_head][position / kKeyBlock][dim / 4][position % kKeyBlock]
  PackedWord* v = nullptr;    // values [kv_head][position / 4][dim]
  float* k_scales = nullptr;  // scales of the keys [kv_head][position]
  float* v_scales = nullptr;  // scales of the values [kv_head][position]
  int64_t positions = 0;      // positions of the batch, each sequence rounded up to kKeyBlock
};

// Scratch of one group of tiles. A row has room for `stride` positions; its first element is position FirstKept
// (tile_window.h) of the tile.
struct TileScratch {
  int16_t* scores = nullptr;  // [tile][num_heads][kQueryTile][stride]: counts of q k
  // [tile][num_heads][kQueryTile][stride / 4], four positions a word: x has the codes of the probabilities, y has, for
  // each code, minus the number of ones in its stream.
  PackedWord* p = nullptr;
  float* p_scales = nullptr;  // [tile][num_heads][kQueryTile]: scales of the rows of probabilities
  int64_t stride = 0;         // positions of a row, a multiple of kKeyBlock
};

// Arguments of the tile kernels for one group of tiles.
struct TileArgs {
  AttentionArgs attention;
  ScTables qk, av;
  QueryCodes q;
  WindowScales window;
  PackedKv kv;
  TileScratch scratch;
  const QueryTile* tiles = nullptr;  // [num_tiles] of this group, device memory
  int32_t num_tiles = 0;
  uint32_t zero = 0;  // always 0; ValueUnit needs a zero that the compiler cannot see
  // query heads of the launch; all pointers have been moved to its first head, so heads count from 0
  int32_t heads = 0;

#if defined(__CUDACC__)
  // Offset in the scratch of position 0 of row `row` of the tile; may lie before the row, which begins at FirstKept.
  __device__ __forceinline__ int64_t RowAt(int64_t row, const QueryTile& tile) const {
    return row * scratch.stride - FirstKept(attention, tile.PositionOf(0));
  }
#endif
};

// tile_softmax.cu. LaunchPackKv fills args.kv for a batch. LaunchTileSoftmax turns scratch.scores into codes and scales
// of probabilities (scratch.p, scratch.p_scales). head_max (only in kPerHead): just raises window.p_heads to the
// largest probability of each head.
void LaunchPackKv(DeviceContext& ctx, const TileArgs& args, const TileBatch& batch);
void LaunchTileSoftmax(DeviceContext& ctx, const TileArgs& args, AttentionMode mode, bool head_max);
// tile_mma.cu. LaunchTileScores writes the counts of q k to scratch.scores, LaunchTileValues the outputs of p v to
// attention.out.
void LaunchTileScores(DeviceContext& ctx, const ScTilePlan& plan, const TileArgs& args);
void LaunchTileValues(DeviceContext& ctx, const ScTilePlan& plan, const TileArgs& args, AttentionMode mode);
// tile_int8.cu. As the two launchers above, with int8 instead of binary products. Requires: plan.products is kInt8.
void LaunchTileScoresInt8(DeviceContext& ctx, const ScTilePlan& plan, const TileArgs& args);
void LaunchTileValuesInt8(DeviceContext& ctx, const ScTilePlan& plan, const TileArgs& args, AttentionMode mode);

}  // namespace stoch::cuda
