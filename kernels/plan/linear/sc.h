// SPDX-License-Identifier: Apache-2.0
// SC linears on a GPU: the routes of one stream length, and the sizes of their kernels.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/linear/plan.h"
#include "kernels/plan/sc_dims.h"
#include "kernels/plan/sc_traits.h"

namespace stoch {

inline constexpr int kDecodeChunkDims = 128;  // of a chunk, at most, of kernels that keep one in shared memory

// The plan of one launch of weights of one operator, as PlanLinear.
LinearPlan PlanScLinear(const GpuTraits& gpu, const ScTraits& sc, const LinearShape& shape,
                        const LinearPass& pass = {.aligned = false});

// The plan of rows of several stream lengths (docs/research.md#mixed-lengths) by the decode kernel, at most
// kMaxDecodeTokens of them. fused: of one row, which the kernel quantizes itself.
// Requires: CanDecodeMixed. `sc`: the traits of any length that is not 0.
LinearPlan PlanMixedDecode(const GpuTraits& gpu, const ScTraits& sc, const LinearShape& shape, bool fused);
bool CanDecodeMixed(const ScTraits& sc, int64_t in_features);

// A plan of kScPrompt, whatever PlanScLinear would choose; for tests, and for mixed: rows of several lengths, of which
// `sc` is the longest. Requires: CanPrefillWgmma.
LinearPlan PlanScPrefill(const GpuTraits& gpu, const ScTraits& sc, const LinearShape& shape, bool mixed = false);
// The form of tiles of such an operator: streams of 64 cycles and fewer are shorter than the closed form.
constexpr TileForm TileFormOf(const GpuTraits& gpu, const ScTraits& sc) {
  if (!gpu.has_binary_mma && sc.has_int8_form) return TileForm::kInt8;
  return sc.has_tile_form && sc.stoc_len > 64 ? TileForm::kClosed : TileForm::kStreams;
}
// Bytes of the operands of all tokens. Requires: a closed form.
int64_t TileOperandBytes(TileForm form, const ScDims& dims, int64_t tokens, int tile_tokens);
// A plan of kScTilesSplit or kScTiles, of `split` where it has a value (tests). Requires: CanPrefill.
LinearPlan PlanScTiles(const GpuTraits& gpu, const ScTraits& sc, const LinearShape& shape,
                       std::optional<bool> split = {});
bool CanPrefill(const ScTraits& sc);
bool CanPrefillWgmma(const GpuTraits& gpu, const ScTraits& sc, bool mixed = false);

// Elements that a warp quantizes in fours (prologue/held_codes.cuh), where rows are aligned.
constexpr bool HoldsVectors(const ScDims& dims, ScCode code) {
  return code != ScCode::kAsymmetric && dims.chunk_d <= kDecodeChunkDims && dims.chunk_d % 4 == 0 && dims.dims % 4 == 0;
}

// The largest scratch_bytes of PlanScLinear for 1..max_tokens tokens.
int64_t ScLinearScratchBytes(const GpuTraits& gpu, const ScTraits& sc, int64_t in_features,
                             std::span<const int64_t> out_features, int64_t max_tokens);

// How many tokens and tasks there can be, as the kernels know them.
inline constexpr int kMaxDecodeTokens = 8;
inline constexpr int kMaxBatchFewTokens = 4;
inline constexpr int kMaxBatchTableTokens = 16;
inline constexpr int kMaxBatchWgmmaTokens = 256;

// Flags of several blocks that wait for each other, in device memory (DeviceContext::flags).
inline constexpr int64_t kBlockFlags = 16384;

// ---- Sizes of the kernels, which check them where they are compiled.
// kScDecode: of one staged chunk and token (count rows, codes, scale, tops), and where the kernel quantizes.
inline constexpr int64_t kDecodeStageBytes = 128 * 128 + 128 + 8;
inline constexpr int64_t kDecodeFusedBytes = 256 * 4 + 256;
inline constexpr int64_t kDecodeMixedStaticBytes = 5120;  // at most: tables and rules of 4 matrices
// kScFew, kScTable: the table; a ring of pairs of tiles; the largest static part of the kernels for 4, 8 and 16 tokens.
inline constexpr int64_t kBatchTableBytes = 128 * 1024;
inline constexpr int64_t kBatchSmallTableBytes = 64 * 1024;      // of 8 tokens with a chunk in two parts
inline constexpr int64_t kBatchPairBytes = 16 * 2 * kTileBytes;  // of 16 warps
inline constexpr int64_t kFewStaticBytes = 544 + 1024;
inline constexpr int64_t kEightStaticBytes = 4256 + 1024;
inline constexpr int64_t kEightSmallStaticBytes = 2720 + 352;
inline constexpr int64_t kSixteenStaticBytes = 5312 + 1024;
// kScTiles, kScTilesSplit: tokens of a tile, the ring, and where the sums of split tiles are added. All fit 99 KB.
inline constexpr int kTileTokensNarrow = 32;
inline constexpr int kTileTokensWide = 64;
inline constexpr int kTileStages = 4;
inline constexpr int kTileTableStages = 3;  // next to a table of ranks
inline constexpr int kTileFormStages = 3;   // of 32 dimensions, by the closed form
inline constexpr int kTileFormDims = 32;
inline constexpr int64_t kTileFormTableBytes = 8192;  // words of all codes
// Bytes of a stage and token: bits, elements of three int8 products, and steps, a word a digit for 32 tokens.
inline constexpr int kTileFormTokenBytes = kTileFormDims * 4 + kTileFormDims * 3 + kTileFormDims * 24 * 4 / 32;
inline constexpr int kTileInt8Stages = 4;  // of 16 dimensions, by the closed form in int8
inline constexpr int kTileInt8Dims = 16;
// Elements; two bits a digit, a word for 32 tokens; 16 bits of constants.
inline constexpr int kTileInt8TokenBytes = kTileInt8Dims * 8 + kTileInt8Dims * 25 * 2 * 4 / 32 + 2;
inline constexpr int kTileFlipBytes = 32 * 9 * 4;  // of a warp: counters of 32 rows and tokens change places
inline constexpr int64_t kTileCombineBytes = 96 * 1024;
// kScBatch, kScPrompt.
inline constexpr int kRingHeaderBytes = 256;
inline constexpr int kBatchRows = 256;  // weight rows of a tile
inline constexpr int kBatchMaxStages = 15;
inline constexpr int64_t kBatchThermometerBytes = 256 * 8 * 16;
inline constexpr int64_t kBatchCombineBytes = 128 * 1024;
inline constexpr int kPrefillSuperRows = 256;  // weight rows of the tile of a cluster
inline constexpr int kPrefillTileTokens = 192;
inline constexpr int kPrefillMaxStages = 6;
inline constexpr int kPrefillTileFlags = 16;
// ScQuantizer::kStreams: rows that pay for a table of all dimensions in every SM, and codes next to the table.
inline constexpr int kStreamFewestRows = 512;
inline constexpr int64_t kStreamCodeBytes = int64_t{32} * 8 * 36 * 4;
// Bytes of the table: of every level of the dimensions of a chunk that have different masks.
constexpr int64_t StreamTableBytes(int masks, int levels, const ScDims& dims) {
  return (dims.chunk_stride < masks ? dims.chunk_stride : masks) * levels * 16;
}

}  // namespace stoch
