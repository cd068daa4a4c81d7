// SPDX-License-Identifier: Apache-2.0
// SC linears on a GPU: who multiplies which shape, with how much shared memory and scratch.
//
// The launch, the plan of memory, `stoch inspect` and a table test over GPUs that nobody has to own ask the same
// functions. Bits: every kernel gives docs/sc_arithmetic.md#5-back-to-real-numbers exactly, so the
// choice is invisible.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/sc_dims.h"
#include "kernels/plan/sc_traits.h"

namespace stoch {

enum class ScKernel : uint8_t {  // in files of kernels/cuda
  kDecode,                       // sc/decode/decode.cu: count rows in shared memory, 1 to 8 tokens at a time
  kFew,                          // sc/table/few.cu: 2 to 4 tokens, counts of all of them in one look-up
  kTable,                        // sc/table/table.cu: 5 to 16 tokens, residuals of all of them in one look-up
  kBatchWgmma,    // sc/tensor_core/batch_wgmma.cu: up to 256 tokens on binary wgmma, dimensions shared out over blocks
  kPrefillWgmma,  // sc/tensor_core/prefill_wgmma.cu: any number of tokens in tiles of 192
  kPrefillMma,    // sc/tensor_core/prefill_mma.cu: the same on mma.sync
  kGeneric,       // sc/generic.cu: any operator, one product at a time
};
std::string_view ScKernelName(ScKernel kernel);

// Who quantizes the activations.
enum class ScQuantizer : uint8_t {
  kKernel,   // the kernel itself
  kByChunk,  // sc/batch/quantize.cu: a warp a chunk
  kByRow,    // prologue/activations.cu: a block a row
};

// The shape of one launch: matrices that share their quantized activations.
struct ScShape {
  int64_t tokens = 0;
  int64_t in_features = 0;
  std::span<const int64_t> out_features;  // of 1..kMaxScTasks matrices
};
inline constexpr int kMaxScTasks = 4;

// How blocks of ScKernel::kBatchWgmma share the chunks of all tiles.
struct BatchShares {
  int blocks = 0;
  int owners = 0;             // blocks that keep the outputs of whole tiles to themselves
  int helped = 0;             // the last chunks of each tile whose sums the other blocks leave them
  int64_t stored_chunks = 0;  // of each tile's: those whose sums go to memory
};

struct ScPlan {
  ScKernel kernel = ScKernel::kGeneric;
  ScQuantizer quantizer = ScQuantizer::kByRow;
  int tile_tokens = 0;       // that the kernel is built for: of a launch (kDecode, kFew, kTable) or of a tile
  int stages = 0;            // of a ring (kBatchWgmma, kPrefillWgmma); pairs of tiles ahead (kFew, kTable)
  int blocks = 0;            // of the grid; 0 where it follows from tiles alone or from what is resident
  int staged = 0;            // kDecode: chunks that a block stages at a time
  BatchShares shares;        // kBatchWgmma
  int64_t shared_bytes = 0;  // dynamic shared memory of a block
  int64_t static_bytes = 0;  // and at most that much static
  // Bytes of the workspace: what the quantized activations take, and what the launch takes besides. Upper bounds.
  int64_t quantize_bytes = 0;
  int64_t launch_bytes = 0;
  int64_t scratch_bytes() const { return quantize_bytes + launch_bytes; }
};

// The plan of one launch.
// Requires: tokens >= 1, 1..kMaxScTasks out_features. Bounds: shared_bytes + static_bytes <= gpu.max_shared_bytes.
ScPlan PlanScLinear(const GpuTraits& gpu, const ScTraits& sc, const ScShape& shape);

// The plan of rows of several stream lengths (docs/research.md#mixed-lengths) by ScKernel::kDecode, at most
// kMaxDecodeTokens of them. fused: of one row, which the kernel quantizes itself.
// Requires: CanDecodeMixed. `sc`: the traits of any length that is not 0.
ScPlan PlanMixedDecode(const GpuTraits& gpu, const ScTraits& sc, const ScShape& shape, bool fused);
bool CanDecodeMixed(const ScTraits& sc, int64_t in_features);

// The same for ScKernel::kPrefillWgmma or kPrefillMma, whatever PlanScLinear would choose; for tests, and for
// mixed: rows of several lengths, of which `sc` is the longest.
// Requires: CanPrefill.
ScPlan PlanScPrefill(const GpuTraits& gpu, const ScTraits& sc, const ScShape& shape, bool wgmma, bool mixed = false);
bool CanPrefill(const ScTraits& sc);
bool CanPrefillWgmma(const GpuTraits& gpu, const ScTraits& sc, bool mixed = false);

// The largest scratch_bytes of PlanScLinear for 1..max_tokens tokens.
int64_t ScLinearScratchBytes(const GpuTraits& gpu, const ScTraits& sc, int64_t in_features,
                             std::span<const int64_t> out_features, int64_t max_tokens);

// How many tokens and tasks there can be, as the kernels know them.
inline constexpr int kMaxDecodeTokens = 8;
inline constexpr int kMaxBatchFewTokens = 4;
inline constexpr int kMaxBatchTableTokens = 16;
inline constexpr int kMaxBatchWgmmaTokens = 256;

// Of several blocks that wait for each other: flags in device memory (DeviceContext::flags).
inline constexpr int64_t kBlockFlags = 16384;

// ---- Sizes of the kernels, which check them where they are compiled.
// kDecode: of one staged chunk and token (count rows, codes, scale, tops), and where the kernel quantizes.
inline constexpr int64_t kDecodeStageBytes = 128 * 128 + 128 + 8;
inline constexpr int64_t kDecodeFusedBytes = 256 * 4 + 256;
inline constexpr int kDecodeChunkDims = 128;
inline constexpr int64_t kDecodeMixedStaticBytes = 5120;  // at most: tables and rules of 4 matrices
// kFew, kTable: the table; a ring of pairs of tiles; the largest static part of the kernels for 4, 8 and 16 tokens.
inline constexpr int64_t kBatchTableBytes = 128 * 1024;
inline constexpr int64_t kBatchPairBytes = 16 * 2 * kTileBytes;  // of 16 warps
inline constexpr int64_t kFewStaticBytes = 544 + 1024;
inline constexpr int64_t kEightStaticBytes = 4256 + 1024;
inline constexpr int64_t kSixteenStaticBytes = 5312 + 1024;
// kBatchWgmma, kPrefillWgmma.
inline constexpr int kRingHeaderBytes = 256;
inline constexpr int kBatchRows = 256;  // weight rows of a tile
inline constexpr int kBatchMaxStages = 15;
inline constexpr int64_t kBatchThermometerBytes = 256 * 8 * 16;
inline constexpr int64_t kBatchCombineBytes = 128 * 1024;
inline constexpr int kPrefillSuperRows = 256;  // weight rows of the tile of a cluster
inline constexpr int kPrefillTileTokens = 192;
inline constexpr int kPrefillMaxStages = 6;
inline constexpr int kPrefillTileFlags = 16;

}  // namespace stoch
