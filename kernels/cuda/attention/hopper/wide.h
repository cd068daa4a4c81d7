// SPDX-License-Identifier: Apache-2.0
// SC attention of prompts on binary wgmma: the arguments and data layouts that the kernels share. Private to this
// folder.
//
// For each group of tiles: q k as 16-bit counts with the largest score of every row (products.cu), softmax and
// quantization of the probabilities (rows.cu), p v (products.cu). In each product, operand A has codes of rows (queries
// or probabilities), turned into thermometers in registers; operand B has streams of K or V (streams.cu), read through
// a ring of stages in shared memory.
#pragma once

#include "kernels/cuda/attention/mixed.h"
#include "kernels/cuda/attention/tile_window.h"

namespace stoch::cuda {

// Arguments of the kernels for one round (some KV heads of one batch of sequences, with the streams of their keys and
// values) and one group of tiles with its scratch.
struct WideArgs {
  AttentionArgs attention;
  ScTables qk, av;
  QueryCodes q;
  int32_t heads = 1;        // query heads of one KV head that a block computes (WidePlan::heads)
  int32_t block_tiles = 1;  // tiles that a block computes (WidePlan::tiles)
  int32_t parts = 1;        // blocks that divide the query heads of a KV head (WidePlan::parts)
  // KV heads of the round: [first_kv_head, first_kv_head + kv_heads).
  int32_t first_kv_head = 0;
  int32_t kv_heads = 0;

  // Streams of keys, laid out in stages as wgmma reads them: [kv_head][position / kWideKeys][dim / 16][stage bytes].
  // Column c of a stage has key WideKey(c).
  uint8_t* k_streams = nullptr;
  // Streams of the values in blocks of kWideValues (64) positions, each in two halves: v_first has the first word of
  // each stream and the sign correction [kv_head][block][kWideFirstUnits], v_others all other words
  // [kv_head][block][WideOtherUnits], in units of head_dim columns x 16 bytes. Lane c of a quad has values 16 c .. 16 c
  // + 7 of the first half, and 16 c + 8 .. 16 c + 15 of the second.
  uint8_t* v_first = nullptr;
  uint8_t* v_others = nullptr;
  // [kv_head][position / kWideKeys]: not 0 if words of v_others have overwritten the streams of these keys. Null unless
  // v_others and k_streams are the same memory (SharesStreams); then v_others is written only for blocks that a group
  // of tiles needs.
  uint8_t* replaced = nullptr;
  uint8_t* v_codes = nullptr;  // codes of the values [kv_head][position][head_dim]
  float* k_scales = nullptr;   // scales of the keys [kv_head][position], positions in the order of WideScale
  float* v_scales = nullptr;   // scales of the values [kv_head][position], positions in the order of WideScale
  uint32_t* v_max = nullptr;   // [kv_head]: float bits of the largest value scale
  int64_t positions = 0;       // positions of the batch, sequence after sequence (PassSequence::packed_begin)

  const QueryTile* tiles = nullptr;  // [num_tiles] of the group, device memory
  int32_t num_tiles = 0;
  int64_t longest = 0;  // positions that the first tile sees, rounded up to kKeyBlock; no tile of the group sees more
  int64_t stride = 0;   // positions that a row has in the scratch, from FirstKept on; a multiple of kKeyBlock
  int16_t* scores = nullptr;  // counts of q k [tile][head of the round][kQueryTile][stride]
  // Codes of the probabilities [tile][head of the round][kQueryTile], rows code_stride bytes apart of which the first
  // `stride` are used. With ReplacesScores, `codes` and `scores` are the same memory, and codes lie at the beginning of
  // each row of scores.
  uint8_t* codes = nullptr;
  int64_t code_stride = 0;
  // [tile][head][kQueryTile]: OrderedBits of the largest score; zeroed before q k.
  uint32_t* row_max = nullptr;
  float* p_scales = nullptr;  // [tile][head][kQueryTile]: scales of the rows of probabilities
  // Flags [tile][head][stride / kWideValues], zeroed before the softmax, for the 64 rows of a (tile, head) pair and
  // kWideValues positions: kSomeCode if any code is not 0, kAllWords if p v needs more than the first word of each
  // stream.
  uint32_t* needed = nullptr;
  // Codes of long rows that p v leaves out and LaunchWideOutputs adds: lists [tile][head][kQueryTile][kWideListed],
  // entry 256 * position + code, and `listed` [tile][head][kQueryTile], entries of each list. Null: no row lists codes.
  uint32_t* lists = nullptr;
  int32_t* listed = nullptr;
  // Sums of the counts of p v [tile][head][kQueryTile][head_dim], zeroed before p v. Null: a block of p v sees all
  // positions of its rows and writes outputs.
  int32_t* sums = nullptr;
  int32_t range = 0;    // positions that a thread block of the products takes
  WideLengths lengths;  // stream lengths of the rows, if is_mixed
  // Whether each row has its own stream length; codes of probabilities are then ranks.
  bool is_mixed = false;
  uint32_t minus_one = ~0u;  // always ~0, unknown to the compiler (operand.cuh)

#if defined(__CUDACC__)
  // Query heads of the round.
  __device__ __forceinline__ int round_heads() const { return kv_heads * attention.group; }
  // Row index, in the scratch, of the first row of a (tile, head of the round) pair.
  __device__ __forceinline__ int64_t FirstRow(int tile, int head) const {
    return (int64_t{tile} * round_heads() + head) * kQueryTile;
  }
  // Offset in `scores` of position 0 of row `row` of the tile; may lie before the row, which begins at FirstKept.
  __device__ __forceinline__ int64_t RowAt(int64_t row, const QueryTile& tile) const {
    return row * stride - FirstKept(attention, tile.PositionOf(0));
  }
  // Address of the code at position 0 of the tile's row `row`; may lie before the row, as in RowAt.
  __device__ __forceinline__ uint8_t* CodesAt(int64_t row, const QueryTile& tile) const {
    return codes + row * code_stride - FirstKept(attention, tile.PositionOf(0));
  }
  // Address of the flags, in `needed`, of the (tile, head) pair whose first row is first_row.
  __device__ __forceinline__ uint32_t* NeededOf(int64_t first_row) const {
    return needed + first_row / kQueryTile * (stride / kWideValues);
  }
  // Index of position 0 of the tile's sequence in arrays [kv_head][position].
  __device__ __forceinline__ int64_t FirstPosition(int kv_head, const QueryTile& tile) const {
    return kv_head * positions + attention.pass.sequences[tile.sequence].packed_begin;
  }
#endif
};

#if defined(__CUDACC__)
// Returns which of kWideKeys keys is in column `column` of q k. With this order, a lane's accumulators of a row in
// every 32 columns are those of eight neighbouring keys.
__device__ __forceinline__ int WideKey(int column) {
  return (column & ~31) + (column >> 1 & 3) * 8 + (column >> 3 & 3) * 2 + (column & 1);
}

inline constexpr uint32_t kSomeCode = 1;  // flags of WideArgs::needed, each in a byte of its own
inline constexpr uint32_t kAllWords = 0x100;

// Returns the index of the scale of position t in k_scales and v_scales: in each kKeyBlock positions, first come the
// first four of every eight, then the other four. Lanes that read eight neighbouring scales each, four at a time, then
// read consecutive 16-byte pieces.
__device__ __forceinline__ int WideScale(int t) {
  constexpr int kInBlock = kKeyBlock - 1;
  return (t & ~kInBlock) + (t >> 2 & 1) * (kKeyBlock / 2) + (t & kInBlock) / 8 * 4 + (t & 3);
}

// Maps a float to an unsigned integer, preserving order; 0 is below all floats.
__device__ __forceinline__ uint32_t OrderedBits(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float FromOrderedBits(uint32_t ordered) {
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}
#endif

// streams.cu: writes streams and scales of K and V, and codes of V, for the round.
void LaunchWideStreams(DeviceContext& ctx, const WideArgs& args, const TileBatch& batch);
// Only if v_others and k_streams share memory. LaunchOtherWords writes the v_others that the group's probabilities
// need, over streams of keys. LaunchReplacedKeys writes the overwritten streams of keys again.
void LaunchOtherWords(DeviceContext& ctx, const WideArgs& args, const TileBatch& batch);
void LaunchReplacedKeys(DeviceContext& ctx, const WideArgs& args, const TileBatch& batch);
// products.cu. LaunchWideScores writes q k to scores and row_max; LaunchWideValues writes p v to sums, or to the
// outputs. ranges: how many ranges of args.range positions the contexts are cut into.
void LaunchWideScores(DeviceContext& ctx, const WidePlan& plan, const WideArgs& args, int64_t ranges);
void LaunchWideValues(DeviceContext& ctx, const WidePlan& plan, const WideArgs& args, int64_t ranges);
// rows.cu: computes codes, p_scales, needed, lists and listed from scores and row_max.
void LaunchWideSoftmax(DeviceContext& ctx, const WideArgs& args);
// outputs.cu: computes the outputs from sums and lists. Requires: sums is not null.
void LaunchWideOutputs(DeviceContext& ctx, const WideArgs& args);

}  // namespace stoch::cuda
