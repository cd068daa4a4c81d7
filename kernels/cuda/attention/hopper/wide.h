// SPDX-License-Identifier: Apache-2.0
// SC attention of prompts on binary wgmma: what its kernels share. Private to this folder.
//
// Per group of tiles: q k as 16-bit counts with the largest score of every row (products.cu), softmax and
// quantization of the probabilities (rows.cu), p v (products.cu). Both products read codes of rows (A,
// thermometers made in registers) against streams of K or V (B, streams.cu) through a ring in shared memory.
#pragma once

#include "kernels/cuda/attention/mixed.h"
#include "kernels/cuda/attention/tile_window.h"

namespace stoch::cuda {

// A round: some KV heads of one batch of sequences, their streams, and the scratch of one group of its tiles.
struct WideArgs {
  AttentionArgs attention;
  ScTables qk, av;
  QueryCodes q;
  int32_t heads = 1;        // WidePlan
  int32_t block_tiles = 1;  // WidePlan::tiles
  int32_t parts = 1;        // WidePlan
  int32_t first_kv_head = 0;
  int32_t kv_heads = 0;

  // [kv_head][position / kWideKeys][dim / 16] stages, columns ordered by WideKey
  uint8_t* k_streams = nullptr;
  // First words of streams of values, [kv_head][position / kWideValues][kWideFirstUnits], and the other words,
  // [...][WideOtherUnits], of each half of the values; lane c of a quad has values 16 c .. 16 c + 7 of the first one and the
  // next eight of the second
  uint8_t* v_first = nullptr;
  uint8_t* v_others = nullptr;
  // Where `v_others` are in the place of k_streams (SharesStreams), [kv_head][position / kWideKeys]: not 0 where they have
  // replaced streams of keys. They are made for a group of tiles that needs them.
  uint8_t* replaced = nullptr;
  uint8_t* v_codes = nullptr;  // [kv_head][position][head_dim]
  float* k_scales = nullptr;   // [kv_head][position], in the order of WideScale
  float* v_scales = nullptr;   // the same
  uint32_t* v_max = nullptr;   // [kv_head]: bits of the largest scale
  int64_t positions = 0;       // of the batch, sequences end to end (PassSequence::packed_begin)

  const QueryTile* tiles = nullptr;  // of the group
  int32_t num_tiles = 0;
  int64_t longest = 0;        // padded length of the first tile
  int64_t stride = 0;         // positions of a row from FirstKept on, a multiple of kKeyBlock
  int16_t* scores = nullptr;  // [tile][head of the round][kQueryTile][stride]
  // Codes of the probabilities: rows of code_stride bytes, `stride` of them used. Where they replace the scores
  // (ReplacesScores), at the beginning of each row of these.
  uint8_t* codes = nullptr;
  int64_t code_stride = 0;
  uint32_t* row_max = nullptr;  // [tile][head][kQueryTile]: OrderedBits of the largest score
  float* p_scales = nullptr;    // [tile][head][kQueryTile]
  // [tile][head][stride / kWideValues]: kSomeCode where a code of the rows is not 0, kAllWords where p v needs more than the
  // first words of streams
  uint32_t* needed = nullptr;
  // Lists of long rows, [tile][head][kQueryTile][kWideListed]: single codes that the products do not multiply, 256 * position + code
  // each; and how many they are. Null where no row has any.
  uint32_t* lists = nullptr;
  int32_t* listed = nullptr;
  int32_t* sums = nullptr;   // [tile][head][kQueryTile][head_dim] of the products; null where a block's are outputs
  int32_t range = 0;         // positions that a block of the products takes
  WideLengths lengths;       // where is_mixed
  bool is_mixed = false;     // rows have lengths of their own; codes of probabilities are their ranks then
  uint32_t minus_one = ~0u;  // a value that the compiler does not know

#if defined(__CUDACC__)
  __device__ __forceinline__ int round_heads() const { return kv_heads * attention.group; }
  // First row of a tile's head in the scratch.
  __device__ __forceinline__ int64_t FirstRow(int tile, int head) const {
    return (int64_t{tile} * round_heads() + head) * kQueryTile;
  }
  // Where position 0 of a row of the tile would be in the scratch: a row begins with FirstKept.
  __device__ __forceinline__ int64_t RowAt(int64_t row, const QueryTile& tile) const {
    return row * stride - FirstKept(attention, tile.PositionOf(0));
  }
  __device__ __forceinline__ uint8_t* CodesAt(int64_t row, const QueryTile& tile) const {
    return codes + row * code_stride - FirstKept(attention, tile.PositionOf(0));
  }
  // `needed` of the tile and head that has its first row there.
  __device__ __forceinline__ uint32_t* NeededOf(int64_t first_row) const {
    return needed + first_row / kQueryTile * (stride / kWideValues);
  }
  __device__ __forceinline__ int64_t FirstPosition(int kv_head, const QueryTile& tile) const {
    return kv_head * positions + attention.pass.sequences[tile.sequence].packed_begin;
  }
#endif
};

#if defined(__CUDACC__)
// Column of q k that key `key` of kWideKeys has: the eight keys that a lane's accumulators hold then lie together.
__device__ __forceinline__ int WideKey(int column) {
  return (column & ~31) + (column >> 1 & 3) * 8 + (column >> 3 & 3) * 2 + (column & 1);
}

inline constexpr uint32_t kSomeCode = 1;  // a byte each
inline constexpr uint32_t kAllWords = 0x100;

// Where the scale of position t is: of kKeyBlock positions the first four of every eight, then the others, so that lanes with
// eight neighbours each read one line after the other.
__device__ __forceinline__ int WideScale(int t) {
  constexpr int kInBlock = kKeyBlock - 1;
  return (t & ~kInBlock) + (t >> 2 & 1) * (kKeyBlock / 2) + (t & kInBlock) / 8 * 4 + (t & 3);
}

// Floats as unsigned integers in the same order; 0 is below all of them.
__device__ __forceinline__ uint32_t OrderedBits(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float FromOrderedBits(uint32_t ordered) {
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}
#endif

// streams.cu: streams and scales of K and V of the round.
void LaunchWideStreams(DeviceContext& ctx, const WideArgs& args, const TileBatch& batch);
// Where streams share memory: the words of values that the probabilities of the group need beyond the first ones, in the place of
// streams of keys; and these again, where they were replaced.
void LaunchOtherWords(DeviceContext& ctx, const WideArgs& args, const TileBatch& batch);
void LaunchReplacedKeys(DeviceContext& ctx, const WideArgs& args, const TileBatch& batch);
// products.cu
void LaunchWideScores(DeviceContext& ctx, const WidePlan& plan, const WideArgs& args, int64_t ranges);
void LaunchWideValues(DeviceContext& ctx, const WidePlan& plan, const WideArgs& args, int64_t ranges);
// rows.cu: probabilities as codes.
void LaunchWideSoftmax(DeviceContext& ctx, const WideArgs& args);
// outputs.cu, where sums are left
void LaunchWideOutputs(DeviceContext& ctx, const WideArgs& args);

}  // namespace stoch::cuda
