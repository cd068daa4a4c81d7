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

// Most dimensions of a chunk in kernels that keep a chunk in shared memory.
inline constexpr int kDecodeChunkDims = 128;

// The plan of one launch of weights of one operator, as PlanLinear.
LinearPlan PlanScLinear(const GpuTraits& gpu, const ScTraits& sc, const LinearShape& shape,
                        const LinearPass& pass = {.aligned = false});

// The plan of up to kMaxDecodeTokens rows of several stream lengths (docs/research.md#mixed-lengths) by the decode
// kernel. fused: there is one row, which the kernel quantizes itself.
// Requires: CanDecodeMixed. `sc`: the traits of any length that is not 0.
LinearPlan PlanMixedDecode(const GpuTraits& gpu, const ScTraits& sc, const LinearShape& shape, bool fused);
bool CanDecodeMixed(const ScTraits& sc, int64_t in_features);

// A plan of kScPrompt, whatever PlanScLinear would choose. mixed: rows have several lengths, and `sc` is the longest.
// Requires: CanPrefillWgmma.
LinearPlan PlanScPrefill(const GpuTraits& gpu, const ScTraits& sc, const LinearShape& shape, bool mixed = false);
// The form in which tiles count with an operator. Streams of at most 64 cycles are shorter than the closed form.
constexpr TileForm TileFormOf(const GpuTraits& gpu, const ScTraits& sc) {
  if (!gpu.has_binary_mma && sc.has_int8_form) return TileForm::kInt8;
  return sc.has_tile_form && sc.stoc_len > 64 ? TileForm::kClosed : TileForm::kStreams;
}
// Bytes of the operands of all tokens. Requires: form is kClosed or kInt8.
int64_t TileOperandBytes(TileForm form, const ScDims& dims, int64_t tokens, int tile_tokens);
// A plan of kScTilesSplit or kScTiles: as `split` says if it has a value (tests), else the faster. Requires:
// CanPrefill.
LinearPlan PlanScTiles(const GpuTraits& gpu, const ScTraits& sc, const LinearShape& shape,
                       std::optional<bool> split = {});
bool CanPrefill(const ScTraits& sc);
bool CanPrefillWgmma(const GpuTraits& gpu, const ScTraits& sc, bool mixed = false);

// Whether a warp can quantize four elements at a time (prologue/held_codes.cuh), if rows are aligned.
constexpr bool HoldsVectors(const ScDims& dims, ScCode code) {
  return code != ScCode::kAsymmetric && dims.chunk_d <= kDecodeChunkDims && dims.chunk_d % 4 == 0 && dims.dims % 4 == 0;
}

// The largest scratch_bytes of PlanScLinear for 1..max_tokens tokens.
int64_t ScLinearScratchBytes(const GpuTraits& gpu, const ScTraits& sc, int64_t in_features,
                             std::span<const int64_t> out_features, int64_t max_tokens);

// Most tokens of a launch of each kernel.
inline constexpr int kMaxDecodeTokens = 8;
inline constexpr int kMaxBatchFewTokens = 4;
inline constexpr int kMaxBatchTableTokens = 16;
inline constexpr int kMaxBatchWgmmaTokens = 256;

// Number of flags in device memory for blocks that wait for each other (DeviceContext::flags).
inline constexpr int64_t kBlockFlags = 16384;

// ---- Sizes of the kernels, which check them at compile time.
// kScDecode: bytes of one staged chunk and token (count rows, codes, scale, tops), and of what a kernel that quantizes
// needs besides.
inline constexpr int64_t kDecodeStageBytes = 128 * 128 + 128 + 8;
inline constexpr int64_t kDecodeFusedBytes = 256 * 4 + 256;
inline constexpr int64_t kDecodeMixedStaticBytes = 5120;  // upper bound: tables and rules of 4 matrices
// kScFew, kScTable: the table; a ring of pairs of tiles; the largest static part of the kernels for 4, 8 and 16 tokens.
inline constexpr int64_t kBatchTableBytes = 128 * 1024;
inline constexpr int64_t kBatchSmallTableBytes = 64 * 1024;      // with a chunk in two parts and at most 8 tokens
inline constexpr int64_t kBatchPairBytes = 16 * 2 * kTileBytes;  // two tiles for each of 16 warps
inline constexpr int64_t kFewStaticBytes = 544 + 1024;
inline constexpr int64_t kEightStaticBytes = 4256 + 1024;
inline constexpr int64_t kEightSmallStaticBytes = 2720 + 352;
inline constexpr int64_t kSixteenStaticBytes = 5312 + 1024;
// kScTiles, kScTilesSplit: tokens of a tile, sizes of the ring, and of the reduction of split tiles. All fit 99 KB.
inline constexpr int kTileTokensNarrow = 32;
inline constexpr int kTileTokensWide = 64;
inline constexpr int kTileStages = 4;
inline constexpr int kTileTableStages = 3;  // stages next to a table of ranks
inline constexpr int kTileFormStages = 3;   // closed form: stages of 32 dimensions
inline constexpr int kTileFormDims = 32;
inline constexpr int64_t kTileFormTableBytes = 8192;  // words of all codes
// Bytes of a token in a stage: for each dimension 4 of bits, 3 of elements of int8 products, and 24 words of steps that
// 32 tokens share.
inline constexpr int kTileFormTokenBytes = kTileFormDims * 4 + kTileFormDims * 3 + kTileFormDims * 24 * 4 / 32;
inline constexpr int kTileInt8Stages = 4;  // closed form in int8: stages of 16 dimensions
inline constexpr int kTileInt8Dims = 16;
// Bytes of a token in a stage: for each dimension 8 of elements, and two words for each of 25 digits that 32 tokens
// share; then 2 of constants.
inline constexpr int kTileInt8TokenBytes = kTileInt8Dims * 8 + kTileInt8Dims * 25 * 2 * 4 / 32 + 2;
// Scratch of a warp, in which the counters of 32 rows and tokens are transposed.
inline constexpr int kTileFlipBytes = 32 * 9 * 4;
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
// ScQuantizer::kStreams: least rows for which it pays to build the table in every SM, and bytes of the codes next to
// the table.
inline constexpr int kStreamFewestRows = 512;
inline constexpr int64_t kStreamCodeBytes = int64_t{32} * 8 * 36 * 4;
// Bytes of the table: a stream of 128 bits for every level under every mask that the dimensions of a chunk use.
constexpr int64_t StreamTableBytes(int masks, int levels, const ScDims& dims) {
  return (dims.chunk_stride < masks ? dims.chunk_stride : masks) * levels * 16;
}

}  // namespace stoch
